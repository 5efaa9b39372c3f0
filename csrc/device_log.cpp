#include "device_log.h"

#include <mutex>

#include "clock.h"

namespace pytracer {

namespace {

// One writer: no read-modify-write instruction needed.
void increment(std::atomic<uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// The actions whose events get the stack of their thread, a bit for each.
uint32_t stack_actions(Context context) noexcept {
  constexpr uint32_t kAll = (1u << PYTRACER_ACTION_COUNT) - 1;
  constexpr uint32_t kMarker = 1u << PYTRACER_SNAPSHOT;  // of no block
  constexpr uint32_t kFrees = 1u << PYTRACER_FREE_REQUESTED | 1u << PYTRACER_FREE_COMPLETED;
  switch (context) {
    case Context::none:
      return 0;
    case Context::state:
      return 1u << PYTRACER_ALLOC;
    case Context::alloc:  // frees show the stack of their allocation, which the live table knows
      return kAll & ~kMarker & ~kFrees;
    case Context::all:
      return kAll & ~kMarker;
  }
  return 0;
}

}  // namespace

DeviceLog::DeviceLog(int device, uint32_t ring_capacity)
    : device_(device),
      ring_(std::make_shared<RingBuffer>(ring_capacity)),
      tables_(std::make_unique<Tables>()),
      names_(std::make_shared<DeviceNames>()) {}

void DeviceLog::record(const pytracer_event& given, uint32_t stack, uint16_t phase,
                       Cut* cut) noexcept {
  std::lock_guard lock(writer_lock_);
  // A mode change takes the lock: what is written here is of the mode read here.
  const Mode mode = mode_.load(std::memory_order_relaxed);
  if (mode != Mode::off) {
    // Ours is read under the lock, theirs under the device's: times and numbers have one order.
    const int64_t ticks = given.ticks != 0 ? given.ticks : now_ticks();
    const Known known = note(given, ticks, stack, phase);
    if (known.is_recorded && mode == Mode::on) {
      ring_->append({0, known.alloc_stack, given.address, known.size, given.stream, ticks,
                     given.autograd_sequence, stack, 0, phase,
                     names_->number_of_pool(given.pool_high, given.pool_low),
                     names_->number_of(given.labels), given.action,
                     static_cast<int8_t>(given.device)});
    }
  }
  if (cut != nullptr) begin_cut_locked(*cut);
}

// Keeps the tables.
inline DeviceLog::Known DeviceLog::note(const pytracer_event& given, int64_t ticks, uint32_t stack,
                                        uint16_t phase) noexcept {
  LiveTable& blocks = tables_->blocks;
  if (given.action != PYTRACER_SNAPSHOT) used_ = true;
  Known known{given.size, 0, true};
  switch (given.action) {
    case PYTRACER_ALLOC:
      if (const LiveBlock* gone = blocks.find(given.address)) {
        note_missed_free(given, ticks, phase, *gone);
      }
      if (!blocks.insert(given.address, given.size, ticks, stack, phase)) {
        increment(live_dropped_);
        known.is_recorded = !is_cpu();  // an event without its block would contradict the state
      }
      break;
    case PYTRACER_FREE_REQUESTED:
      if (const LiveBlock* block = blocks.find(given.address)) known.alloc_stack = block->stack;
      break;
    case PYTRACER_FREE_COMPLETED:
      if (const LiveBlock* block = blocks.find(given.address)) {
        known.alloc_stack = block->stack;
        if (known.size == 0) known.size = block->size;
        blocks.remove(*block);
      } else {
        increment(unknown_frees_);
        known.is_recorded = !is_cpu() || known.size != 0;  // else nobody knows how much was freed
      }
      break;
    default:
      known.alloc_stack = note_segment(given, ticks, stack, phase);
  }
  return known;
}

// Of any other action too, which changes nothing. Returns the stack of the segment that goes.
__attribute__((noinline)) uint32_t DeviceLog::note_segment(const pytracer_event& given,
                                                           int64_t ticks, uint32_t stack,
                                                           uint16_t phase) noexcept {
  LiveTable& segments = tables_->segments;
  const bool begins =
      given.action == PYTRACER_SEGMENT_ALLOC || given.action == PYTRACER_SEGMENT_MAP;
  if (!begins && given.action != PYTRACER_SEGMENT_FREE && given.action != PYTRACER_SEGMENT_UNMAP) {
    return 0;
  }
  uint32_t gone_stack = 0;
  if (const LiveBlock* gone = segments.find(given.address)) {
    if (!begins) gone_stack = gone->stack;
    segments.remove(*gone);
  }
  if (begins && !segments.insert(given.address, given.size, ticks, stack, phase)) {
    increment(live_dropped_);
  }
  return gone_stack;
}

// An address is given out again: its block must have gone, unseen, some time before.
__attribute__((noinline)) void DeviceLog::note_missed_free(const pytracer_event& allocation,
                                                           int64_t ticks, uint16_t phase,
                                                           const LiveBlock& gone) noexcept {
  if (is_cpu() && mode_.load(std::memory_order_relaxed) == Mode::on) {
    Event event{};
    event.address = gone.address;
    event.size = gone.size;
    event.stream = allocation.stream;
    event.ticks = ticks;
    event.alloc_stack = gone.stack;
    event.phase = phase;
    event.action = PYTRACER_FREE_COMPLETED;
    event.device = static_cast<int8_t>(allocation.device);
    ring_->append(event);
  }
  tables_->blocks.remove(gone);
}

void DeviceLog::set_mode(Mode mode, Context context) {
  std::unique_ptr<Tables> fresh;
  if (this->mode() == Mode::off && mode != Mode::off &&
      tables_->blocks.committed_bytes() + tables_->segments.committed_bytes() > 0) {
    fresh = std::make_unique<Tables>();
  }
  std::lock_guard lock(writer_lock_);
  if (fresh) tables_.swap(fresh);
  mode_.store(mode, std::memory_order_release);
  stack_actions_.store(stack_actions(context), std::memory_order_relaxed);
}

void DeviceLog::ensure_ring(uint32_t capacity) {
  if (capacity <= ring_->capacity()) return;
  // The bulk is copied while writers go on; they wait for the rest alone.
  auto grown = std::make_shared<RingBuffer>(capacity, *ring_);
  std::unique_lock lock(writer_lock_);
  if (!grown->catch_up(*ring_)) {  // they went round once: now they are held up
    grown = std::make_shared<RingBuffer>(capacity, *ring_);
  }
  ring_.swap(grown);
  lock.unlock();  // before the old ring goes
}

DeviceLog::Cut DeviceLog::position_locked() const noexcept {
  Cut cut{};
  cut.end = ring_->head();
  cut.ring = ring_;
  cut.names = names_;
  cut.counts = {unknown_frees_.load(std::memory_order_relaxed),
                live_dropped_.load(std::memory_order_relaxed), names_->dropped()};
  cut.used = used_;
  return cut;
}

DeviceLog::Cut DeviceLog::position() noexcept {
  std::lock_guard lock(writer_lock_);
  return position_locked();
}

void DeviceLog::begin_cut_locked(Cut& cut) noexcept {
  cut = position_locked();
  tables_->blocks.freeze();
  tables_->segments.freeze();
}

void DeviceLog::begin_cut(Cut& cut) noexcept {
  std::lock_guard lock(writer_lock_);
  begin_cut_locked(cut);
}

void DeviceLog::finish_cut(Cut& cut) {
  struct Thaw {
    LiveTable& table;
    ~Thaw() { table.thaw(); }
  };
  const Thaw blocks{tables_->blocks};
  const Thaw segments{tables_->segments};
  cut.live = tables_->blocks.collect();
  cut.segments = tables_->segments.collect();
}

}  // namespace pytracer
