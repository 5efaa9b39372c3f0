#include "device_log.h"

#include <mutex>

#include "clock.h"

namespace pytracer {

namespace {

// One writer: no read-modify-write instruction needed.
void increment(std::atomic<uint64_t>& counter) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// An address is given out again: its block must have gone, unseen, some time before.
Event missed_free(const Event& allocation, const LiveBlock& gone) noexcept {
  Event event{};
  event.address = gone.address;
  event.size = gone.size;
  event.stream = allocation.stream;
  event.ticks = allocation.ticks;
  event.alloc_stack = gone.stack;
  event.pool = allocation.pool;
  event.phase = allocation.phase;
  event.action = PYTRACER_FREE_COMPLETED;
  event.device = allocation.device;
  return event;
}

LiveBlock live_block(const Event& event) noexcept {
  LiveBlock block{};
  block.address = event.address;
  block.size = event.size;
  block.ticks = event.ticks;
  block.stack = event.stack;
  block.phase = event.phase;
  return block;
}

}  // namespace

DeviceLog::DeviceLog(int device, uint32_t ring_capacity)
    : device_(device),
      ring_(std::make_shared<RingBuffer>(ring_capacity)),
      tables_(std::make_unique<Tables>()),
      names_(std::make_shared<DeviceNames>()) {}

void DeviceLog::record(Event& event, const pytracer_event& given, Cut* cut) noexcept {
  std::lock_guard lock(writer_lock_);
  // A mode change takes the lock: what is written here is of the mode read here.
  if (mode_.load(std::memory_order_relaxed) != Mode::off) {
    event.address = given.address;
    event.size = given.size;
    event.stream = given.stream;
    // Ours is read under the lock, theirs under the device's: times and numbers have one order.
    event.ticks = given.ticks != 0 ? given.ticks : now_ticks();
    event.autograd_sequence = given.autograd_sequence;
    event.pool = names_->number_of(Pool{given.pool_high, given.pool_low});
    event.metadata = names_->number_of(given.labels);
    event.action = given.action;
    event.device = static_cast<int8_t>(given.device);
    if (note(event)) append(event);
  }
  if (cut != nullptr) begin_cut_locked(*cut);
}

// Keeps the tables, and takes from them what they know of the event. False: not to be recorded.
bool DeviceLog::note(Event& event) noexcept {
  LiveBlock block{};
  if (event.action != PYTRACER_SNAPSHOT) used_ = true;
  switch (event.action) {
    case PYTRACER_ALLOC:
      return note_alloc(event);
    case PYTRACER_FREE_REQUESTED:
      if (tables_->blocks.find(event.address, &block)) event.alloc_stack = block.stack;
      return true;
    case PYTRACER_FREE_COMPLETED:
      if (tables_->blocks.remove(event.address, &block)) {
        event.alloc_stack = block.stack;
        if (event.size == 0) event.size = block.size;
        return true;
      }
      increment(unknown_frees_);
      return !is_cpu() || event.size != 0;  // else nobody knows how much was freed
    case PYTRACER_SEGMENT_ALLOC:
    case PYTRACER_SEGMENT_MAP:
      tables_->segments.remove(event.address, &block);
      if (!tables_->segments.insert(live_block(event))) increment(live_dropped_);
      return true;
    case PYTRACER_SEGMENT_FREE:
    case PYTRACER_SEGMENT_UNMAP:
      if (tables_->segments.remove(event.address, &block)) event.alloc_stack = block.stack;
      return true;
    default:
      return true;
  }
}

bool DeviceLog::note_alloc(Event& event) noexcept {
  LiveBlock gone{};
  if (tables_->blocks.remove(event.address, &gone) && is_cpu()) {
    append(missed_free(event, gone));
  }
  if (tables_->blocks.insert(live_block(event))) return true;
  increment(live_dropped_);
  return !is_cpu();  // an event without its block would contradict the state
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
  context_.store(context, std::memory_order_relaxed);
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
