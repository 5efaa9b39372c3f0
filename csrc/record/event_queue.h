// The events of one thread that wait for the CPU's log, which writes the events of all threads in one go.
//
// 1. push() is for the queue's thread. The other methods are for the thread that holds the log's writer
//    lock. Nobody waits.
// 2. Bounded: kCapacity events, 32 bytes each.
//
// Without queues, each event would move the lock, the ring and the table of live blocks from one
// processor to another, and threads that allocate at the same time would wait for each other.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace pytracer {

struct QueuedEvent {
  uint64_t address;
  uint64_t size;
  int64_t ticks;  // ordered_ticks()
  uint32_t stack;
  uint16_t phase;
  uint8_t action;
};
static_assert(sizeof(QueuedEvent) == 32);

class alignas(64) EventQueue {  // apart from what its thread writes at each event
 public:
  static constexpr uint32_t kCapacity = 64;
  // From so many events on, the thread writes them if the lock is free. It waits for the lock at kCapacity.
  static constexpr uint32_t kEnough = kCapacity / 2;

  // Only if there is room. Returns how many events wait now. Gives the event the time of the one before
  // if the clock has gone back.
  uint32_t push(QueuedEvent event) noexcept {
    const uint32_t end = end_.load(std::memory_order_relaxed);
    event.ticks = newest_ = std::max(event.ticks, newest_);
    events_[end % kCapacity] = event;
    end_.store(end + 1, std::memory_order_release);
    return end + 1 - begin_.load(std::memory_order_acquire);
  }

  bool is_empty() const noexcept {
    return end_.load(std::memory_order_acquire) == begin_.load(std::memory_order_relaxed);
  }
  // Begins a pass over the events that wait now. Returns whether there are any.
  bool begin_pass() noexcept {
    at_ = begin_.load(std::memory_order_relaxed);
    pass_end_ = end_.load(std::memory_order_acquire);
    return at_ != pass_end_;
  }
  // The next event of the pass, if its time is not later; else null.
  const QueuedEvent* next(int64_t latest) const noexcept {
    if (at_ == pass_end_) return nullptr;
    const QueuedEvent& event = events_[at_ % kCapacity];
    return event.ticks <= latest ? &event : nullptr;
  }
  void advance() noexcept { ++at_; }
  // Makes room for what the pass has passed.
  void end_pass() noexcept { begin_.store(at_, std::memory_order_release); }

  int64_t newest() const noexcept { return newest_; }  // for the queue's thread: the last event's time
  // While no thread uses the queue.
  void clear() noexcept { begin_.store(end_.load(std::memory_order_relaxed)); }

  EventQueue* following = nullptr;  // in a pass: another queue with events

 private:
  std::atomic<uint32_t> begin_{0};
  std::atomic<uint32_t> end_{0};
  int64_t newest_ = 0;
  uint32_t at_ = 0, pass_end_ = 0;
  QueuedEvent events_[kCapacity];
};

}  // namespace pytracer
