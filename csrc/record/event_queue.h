// The events of one thread that found the writer lock of the CPU's log taken.
//
// 1. push() is for the queue's thread. front() and pop() are for the thread that holds the writer
//    lock. Neither waits.
// 2. Bounded: kCapacity events. The number is small, because whoever takes the lock writes the queued
//    events of all threads, and looks at every thread's queue twice for each of them.
//
// Without queues, threads that allocate at the same time would wait for each other at each event,
// and the log's memory would move from processor to processor each time.
#pragma once

#include <atomic>
#include <cstdint>

namespace pytracer {

struct QueuedEvent {
  uint64_t number;  // in the order in which the log's events were queued
  uint64_t address;
  uint64_t size;
  int64_t ticks;
  uint32_t stack;
  uint16_t phase;
  uint8_t action;
};

class alignas(64) EventQueue {  // apart from what its thread writes at each event
 public:
  bool has_room() const noexcept {
    return end_.load(std::memory_order_relaxed) - begin_.load(std::memory_order_acquire) <
           kCapacity;
  }
  // Only if there is room.
  void push(const QueuedEvent& event) noexcept {
    const uint32_t end = end_.load(std::memory_order_relaxed);
    events_[end % kCapacity] = event;
    end_.store(end + 1, std::memory_order_release);
  }
  // The oldest event, or null.
  const QueuedEvent* front() const noexcept {
    const uint32_t begin = begin_.load(std::memory_order_relaxed);
    return begin != end_.load(std::memory_order_acquire) ? &events_[begin % kCapacity] : nullptr;
  }
  void pop() noexcept {
    begin_.store(begin_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // While no thread uses the queue.
  void clear() noexcept { begin_.store(end_.load(std::memory_order_relaxed)); }

 private:
  static constexpr uint32_t kCapacity = 8;
  std::atomic<uint32_t> begin_{0};
  std::atomic<uint32_t> end_{0};
  QueuedEvent events_[kCapacity];
};

}  // namespace pytracer
