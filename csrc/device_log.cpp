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
  event.action = PYTRACER_FREE_COMPLETED;
  event.device = allocation.device;
  return event;
}

}  // namespace

DeviceLog::DeviceLog(int device, uint32_t ring_capacity)
    : device_(device),
      ring_(std::make_shared<RingBuffer>(ring_capacity)),
      live_(std::make_unique<LiveTable>(kMaxLiveBlocks)) {}

void DeviceLog::record(Event& event) noexcept {
  std::lock_guard lock(writer_lock_);
  // A mode change takes the lock: what is written here is of the mode read here.
  if (mode_.load(std::memory_order_relaxed) == Mode::off) return;
  event.ticks = now_ticks();  // under the lock: times and numbers have the same order
  LiveBlock block{};
  switch (event.action) {
    case PYTRACER_ALLOC:
      if (live_->remove(event.address, &block)) ring_->append(missed_free(event, block));
      block = {};
      block.address = event.address;
      block.size = event.size;
      block.ticks = event.ticks;
      block.stack = event.stack;
      block.step = event.step;
      block.phase = event.phase;
      if (!live_->insert(block)) {
        increment(live_dropped_);
        return;  // an event without its block would contradict the state
      }
      break;
    case PYTRACER_FREE_REQUESTED:
      if (live_->find(event.address, &block)) event.alloc_stack = block.stack;
      break;
    case PYTRACER_FREE_COMPLETED:
      if (live_->remove(event.address, &block)) {
        event.alloc_stack = block.stack;
        if (event.size == 0) event.size = block.size;
      } else {
        increment(unknown_frees_);
        if (event.size == 0) return;  // nobody knows how much was freed
      }
      break;
    default:
      break;
  }
  ring_->append(event);
}

void DeviceLog::set_mode(Mode mode, Context context) {
  std::unique_ptr<LiveTable> fresh;
  if (this->mode() == Mode::off && mode != Mode::off && live_->committed_bytes() > 0) {
    fresh = std::make_unique<LiveTable>(kMaxLiveBlocks);
  }
  std::lock_guard lock(writer_lock_);
  if (fresh) live_.swap(fresh);
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
  return {ring_->head(), ring_, {},
          {unknown_frees_.load(std::memory_order_relaxed),
           live_dropped_.load(std::memory_order_relaxed)}};
}

DeviceLog::Cut DeviceLog::position() noexcept {
  std::lock_guard lock(writer_lock_);
  return position_locked();
}

DeviceLog::Cut DeviceLog::cut() {
  struct Thaw {
    LiveTable& table;
    ~Thaw() { table.thaw(); }
  };
  Cut cut{};
  {
    std::lock_guard lock(writer_lock_);
    cut = position_locked();
    live_->freeze();
  }
  Thaw thaw{*live_};
  cut.live = live_->collect();
  return cut;
}

}  // namespace pytracer
