#include "record/device_log.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "record/clock.h"
#include "record/device_log_record.h"
#include "record/stack_table.h"

namespace pytracer {

namespace {

// The actions whose events get the stack of their thread, one bit each.
uint32_t stack_actions(Context context) noexcept {
  constexpr uint32_t kAll = (1u << PYTRACER_ACTION_COUNT) - 1;
  constexpr uint32_t kMarker = 1u << PYTRACER_SNAPSHOT;  // belongs to no block
  constexpr uint32_t kFrees = 1u << PYTRACER_FREE_REQUESTED | 1u << PYTRACER_FREE_COMPLETED;
  switch (context) {
    case Context::none: return 0;
    case Context::state: return 1u << PYTRACER_ALLOC;
    case Context::alloc: return kAll & ~kMarker & ~kFrees;  // frees show the stack of their allocation
    case Context::all: return kAll & ~kMarker;
  }
  return 0;
}

}  // namespace

DeviceLog::DeviceLog(int device, uint32_t max_entries, std::shared_ptr<Box> box)
    : device_(device), box_(std::move(box)),
      ring_(std::make_shared<RingBuffer>(ring_capacity(max_entries), part(BoxKind::ring))),
      tables_(std::make_unique<Tables>(*this)),
      names_(std::make_shared<DeviceNames>(part(BoxKind::none))), uses_(part(BoxKind::uses)) {}

// Mode::state, or recording has just been switched off.
__attribute__((noinline)) void DeviceLog::write_without_ring(const pytracer_event& given,
                                                             uint8_t action, uint32_t stack,
                                                             uint16_t phase) noexcept {
  if (mode_.load(std::memory_order_relaxed) != Mode::off) {
    update_tables(given, action, stack, phase);
  }
}

void DeviceLog::write_requested_alone() noexcept {
  if (requested_.ticks != 0) write_requested(PYTRACER_FREE_REQUESTED);
}

void DeviceLog::record_marker(const pytracer_event& marker, uint16_t phase,
                              Capture* capture) noexcept {
  std::lock_guard lock(writer_lock_);
  // As in torch's own snapshots, the marker is an event after those of its own snapshot. torch writes
  // none into the trace of pinned memory.
  if (capture != nullptr) begin_capture_locked(*capture);
  if (device_ != PYTRACER_HOST_DEVICE && mode_.load(std::memory_order_relaxed) == Mode::on) {
    write_requested_alone();
    ring_->append(event(marker, PYTRACER_SNAPSHOT, marker.size, 0, 0, phase));
  }
}

void DeviceLog::record_oom(pytracer_event oom, uint16_t phase, int64_t (*now)()) noexcept {
  std::lock_guard lock(writer_lock_);
  if (now != nullptr) oom.ticks = oom_ticks_ = std::max(now(), oom_ticks_);
  write(oom, PYTRACER_OOM, 0, phase);
}

uint32_t DeviceLog::stack_of(uint64_t address) noexcept {
  std::lock_guard lock(writer_lock_);
  const LiveBlock* block = tables_->blocks.find(address);
  return block != nullptr ? block->stack : 0;
}

// Any other action changes nothing here. Returns the stack of the segment that is released.
__attribute__((noinline)) uint32_t DeviceLog::update_segments(const pytracer_event& given,
                                                              uint32_t stack) noexcept {
  LiveTable& segments = tables_->segments;
  const bool begins = given.action == PYTRACER_SEGMENT_ALLOC || given.action == PYTRACER_SEGMENT_MAP;
  if (!begins && given.action != PYTRACER_SEGMENT_FREE && given.action != PYTRACER_SEGMENT_UNMAP) {
    return 0;
  }
  uint32_t released_stack = 0;
  if (const LiveBlock* released = segments.take(given.address)) {
    if (!begins) released_stack = released->stack;
  }
  if (begins && !segments.insert(given.address, given.size, stack).done) increment(live_dropped_);
  return released_stack;
}

// An address is given out again, so its block must have been freed, unseen, some time before.
__attribute__((noinline)) void DeviceLog::record_missed_free(const pytracer_event& allocation,
                                                             uint16_t phase,
                                                             const LiveBlock& missed) noexcept {
  if (is_cpu() && mode_.load(std::memory_order_relaxed) == Mode::on) {
    Event event{};
    event.address = missed.address;
    event.packed_size = with_birth(missed.size, missed);
    event.stream = allocation.stream;
    event.ticks = ticks_of(allocation);
    event.alloc_stack = missed.stack;
    event.phase = phase;
    event.action = PYTRACER_FREE_COMPLETED;
    event.device = static_cast<int8_t>(allocation.device);
    ring_->append(event);
  }
  tables_->blocks.take(missed.address);
}

void DeviceLog::note_use(uint64_t address, TensorRole role) noexcept {
  std::lock_guard lock(writer_lock_);
  if (mode_.load(std::memory_order_relaxed) != Mode::on) return;
  write_requested_alone();  // the use comes after it
  const LiveBlock* const block = tables_->blocks.find(address);
  if (block == nullptr) return;
  if (is_kept(role)) {
    tables_->blocks.set_role(*block, static_cast<uint8_t>(role));
  } else {
    uses_.note(ring_->head(), address, role);
  }
}

// Before the event of the free is written.
__attribute__((noinline)) void DeviceLog::note_role(const LiveBlock& freed) noexcept {
  uses_.note(ring_->head(), freed.address, static_cast<TensorRole>(freed.role));
  // For a completion that is an event of its own
  if (tables_->blocks.find(freed.address) == &freed) tables_->blocks.set_role(freed, 0);
}

std::vector<TensorUse> DeviceLog::uses(uint64_t begin, uint64_t end) {
  std::vector<TensorUse> found;
  TensorUse burst[256];  // writers wait for one burst at most
  for (uint64_t next = 0, copied = 1; copied != 0;) {
    {
      std::lock_guard lock(writer_lock_);
      copied = uses_.copy(next, std::size(burst), burst);
    }
    std::copy_if(burst, burst + copied, std::back_inserter(found), [&](const TensorUse& use) {
      return begin <= use.sequence && use.sequence <= end;
    });
  }
  return found;
}

void DeviceLog::renew_stacks(StackScan& scan, StackTable& stacks) noexcept {
  constexpr uint32_t kBurst = 32;  // while which writers wait
  const auto renewed = [&](uint32_t stack) { return stacks.renewed(stack); };
  std::lock_guard lock(writer_lock_);
  write_requested_alone();  // it may be the only place that has a stack
  // The ring comes last: a free takes a stack from a live table to the ring, never back.
  if (scan.part != StackScan::ring) {
    const bool blocks = scan.part == StackScan::blocks;
    LiveTable& table = blocks ? tables_->blocks : tables_->segments;
    table.renew_stacks(scan.entry, kBurst, renewed);
    if (scan.entry != 0) return;
    scan = {blocks ? StackScan::segments : StackScan::ring, 1, 0, ring_->head()};
    return;
  }
  const uint64_t begin = std::max(scan.next, ring_->oldest());
  scan.next = std::min(begin + kBurst / 2, scan.end);
  for (uint64_t i = begin; i < scan.next; ++i) ring_->renew_stacks(i, renewed);
  if (begin >= scan.end) scan.part = StackScan::done;
}

void DeviceLog::set_mode(Mode mode, Context context) {
  std::unique_ptr<Tables> fresh;
  if (this->mode() == Mode::off && mode != Mode::off &&
      tables_->blocks.committed_bytes() + tables_->segments.committed_bytes() > 0) {
    fresh = std::make_unique<Tables>(*this);
  }
  std::lock_guard lock(writer_lock_);
  write_requested_alone();  // in the mode in which it was recorded
  if (fresh) {
    fresh->blocks.follow(tables_->blocks);
    tables_.swap(fresh);
  }
  mode_.store(mode, std::memory_order_release);
  stack_actions_.store(mode != Mode::off ? stack_actions(context) : 0, std::memory_order_relaxed);
}

void DeviceLog::resize_ring(uint32_t max_entries) {
  const uint32_t capacity = ring_capacity(max_entries);
  if (capacity == ring_->capacity()) return;
  // The bulk is copied while writers continue. They wait for the copy of the rest alone, and not for a disk: the
  // ring takes its part of the box before.
  auto resized = std::make_shared<RingBuffer>(capacity, *ring_, part(BoxKind::ring));
  std::unique_lock lock(writer_lock_);
  resized->catch_up(*ring_);
  ring_.swap(resized);
  lock.unlock();  // before the old ring is destroyed
}

DeviceLog::Position DeviceLog::position_locked() noexcept {
  write_requested_alone();
  Position position{};
  position.end = ring_->head();
  position.ring = ring_;
  position.names = names_;
  position.counts = {unknown_frees_.load(std::memory_order_relaxed),
                     live_dropped_.load(std::memory_order_relaxed), names_->dropped()};
  position.used = used_;
  position.ever_dropped = position.counts.live_dropped;
  return position;
}

DeviceLog::Position DeviceLog::position() noexcept {
  std::lock_guard lock(writer_lock_);
  return position_locked();
}

DeviceLog::Mark DeviceLog::mark() noexcept {
  std::lock_guard lock(writer_lock_);
  write_requested_alone();
  return {device_, tables_->blocks.mark(), live_dropped_.load(std::memory_order_relaxed), used_};
}

void DeviceLog::begin_capture_locked(Capture& capture) noexcept {
  static_cast<Position&>(capture) = position_locked();
  tables_->blocks.freeze();
  tables_->segments.freeze();
}

void DeviceLog::begin_capture(Capture& capture) noexcept {
  std::lock_guard lock(writer_lock_);
  begin_capture_locked(capture);
}

void DeviceLog::finish_capture(Capture& capture) {
  struct Thaw {
    LiveTable& table;
    SpinLock& writer_lock;
    ~Thaw() { table.thaw(writer_lock); }
  };
  const Thaw blocks{tables_->blocks, writer_lock_};
  const Thaw segments{tables_->segments, writer_lock_};
  capture.blocks = tables_->blocks.collect(writer_lock_);
  capture.segments = tables_->segments.collect(writer_lock_);
}

}  // namespace pytracer
