// The bounded ring of one device's events.
//
// 1. One writer at a time: append() runs under the device's writer lock.
// 2. Any number of readers, on any thread, without a lock; they never delay the writer.
// 3. Events are numbered from 0 in the order they were appended. The ring holds the newest
//    `capacity` of them; the writer overwrites the oldest and never waits.
// 4. copy() verifies each event, so a reader knows which events were overwritten while it read.
// 5. Memory is committed as the ring fills: 64 bytes an event.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "record/event.h"
#include "support/reserved_array.h"

namespace pytracer {

class RingBuffer {
 public:
  explicit RingBuffer(uint32_t capacity) : RingBuffer(capacity, uint64_t{0}) {}
  // Takes over the events of a smaller ring, with their numbers, as a reader of that ring.
  RingBuffer(uint32_t capacity, const RingBuffer& other) : RingBuffer(capacity, other.held()) {}

  // Appends what `other` got since, while it has no writer. False: some of that was overwritten.
  bool catch_up(const RingBuffer& other) noexcept {
    Event event;
    for (uint64_t sequence = head(); sequence < other.head(); ++sequence) {
      if (!other.read(sequence, event)) return false;
      append(event);
    }
    return true;
  }

  // Writer, under the writer lock.
  void append(const Event& event) noexcept {
    const uint64_t sequence = head_.load(std::memory_order_relaxed);
    Slot& slot = slots_[next_];
    // The slot is made invalid first: a reader that sees a new word then also sees that the old
    // event is gone. (Release stores, not a fence, which ThreadSanitizer cannot follow; they cost
    // nothing on x86.)
    slot.words[0].store(tag_of(sequence + kInvalid), std::memory_order_relaxed);
    const auto store = [&](size_t i, uint64_t word) {
      slot.words[i].store(word, std::memory_order_release);
    };
    // Words are composed in registers: reading fields back as words would wait for their stores.
    store(1, event.address);
    store(2, event.size);
    store(3, event.stream);
    store(4, static_cast<uint64_t>(event.ticks));
    store(5, event.autograd_sequence);
    store(6, (uint64_t{event.pool} << 48) | (uint64_t{event.phase} << 32) | event.stack);
    store(7, (uint64_t{static_cast<uint8_t>(event.device)} << 24) | (uint64_t{event.action} << 16) |
                 event.metadata);
    store(0, (uint64_t{event.alloc_stack} << 32) | tag_of(sequence));
    next_ = next_ + 1 == capacity_ ? 0 : next_ + 1;
    head_.store(sequence + 1, std::memory_order_release);
  }

  // The number of the next event. Any thread.
  uint64_t head() const noexcept { return head_.load(std::memory_order_acquire); }
  // The number of the oldest event that is still held. Any thread.
  uint64_t oldest() const noexcept {
    const uint64_t end = head();
    return end - first_ > capacity_ ? end - capacity_ : first_;
  }
  uint32_t capacity() const noexcept { return capacity_; }
  uint64_t committed_bytes() const noexcept {
    return std::min<uint64_t>(head() - first_, capacity_) * sizeof(Event);
  }

  // Copies events [begin, end) to out[0 .. end - begin). Returns the number of the first event
  // that was read completely; so were all after it, and those before it were overwritten. Any
  // thread; end <= head().
  uint64_t copy(uint64_t begin, uint64_t end, Event* out) const noexcept {
    // Newest first: the writer overwrites the oldest first, so the lost events form a prefix.
    for (uint64_t sequence = end; sequence-- > begin;) {
      if (!read(sequence, out[sequence - begin])) return sequence + 1;
    }
    return begin;
  }

 private:
  struct Held {
    uint64_t first;
    std::vector<Event> events;
  };
  Held held() const {
    const uint64_t end = head();
    const uint64_t begin = oldest();
    std::vector<Event> events(end - std::min(begin, end));
    const uint64_t first = copy(std::min(begin, end), end, events.data());
    events.erase(events.begin(), events.end() - static_cast<ptrdiff_t>(end - first));
    return {first, std::move(events)};
  }
  RingBuffer(uint32_t capacity, const Held& held) : RingBuffer(capacity, held.first) {
    for (const Event& event : held.events) append(event);
  }
  RingBuffer(uint32_t capacity, uint64_t first)
      : slots_(capacity),
        capacity_(capacity),
        first_(first),
        next_(static_cast<uint32_t>(first % capacity)),
        head_(first) {}

  static constexpr size_t kWords = sizeof(Event) / sizeof(uint64_t);
  static constexpr uint64_t kTagMask = 0xffffffffu;
  static constexpr uint64_t kInvalid = 1ull << 31;  // capacity is far below, so no reader expects it
  struct alignas(64) Slot {
    std::atomic<uint64_t> words[kWords];
  };
  // 0 marks a slot that was not written or was wiped by a fork; only every 2^32nd event has it too.
  static uint64_t tag_of(uint64_t sequence) noexcept { return (sequence + 1) & kTagMask; }

  bool read(uint64_t sequence, Event& out) const noexcept {
    const Slot& slot = slots_[sequence % capacity_];
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    const uint64_t again = slot.words[0].load(std::memory_order_relaxed);
    std::memcpy(&out, words, sizeof(out));  // the inverse of append(): little-endian
    return words[0] == again && (again & kTagMask) == tag_of(sequence);
  }

  ReservedArray<Slot> slots_;
  const uint32_t capacity_;
  const uint64_t first_;  // number of the first event that this ring ever held
  uint32_t next_;         // slot of the next event: head % capacity, without the division
  std::atomic<uint64_t> head_;
};

}  // namespace pytracer
