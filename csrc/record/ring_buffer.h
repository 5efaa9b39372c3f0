// The bounded ring of one device's events.
//
// 1. One writer at a time: append() runs under the device's writer lock.
// 2. Any number of readers, on any thread, without a lock; they never delay the writer.
// 3. Events are numbered from 0 in the order they were appended. The ring holds the newest
//    `capacity` of them; the writer overwrites the oldest and never waits.
// 4. The writer announces each event before it writes the slot. copy() looks at the announcement
//    after it read a slot, so a reader knows which events were overwritten while it read.
// 5. Stacks may be replaced by equal ones (renew_stacks).
// 6. Memory is committed as the ring fills: 48 bytes an event. In a box, the array's count is head(). The
//    oldest slot of a full ring may be in the middle of a write.
// 7. Event n is in slot (n - first) % capacity(). Where the kernel refuses memory for more slots, capacity()
//    becomes the number of those that there are, at the moment when exactly these are full.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "record/event.h"

namespace pytracer {

class RingBuffer {
 public:
  explicit RingBuffer(uint32_t capacity, const BoxPart& part = {})
      : RingBuffer(capacity, uint64_t{0}, part) {}
  // Takes over the newest events of another ring, with their numbers, as a reader of that ring.
  // catch_up() has to follow, unless that ring has no writer.
  RingBuffer(uint32_t capacity, const RingBuffer& other, const BoxPart& part = {})
      : RingBuffer(capacity, other.held(capacity), part) {
    // So that catch_up() waits for no disk
    slots_.back(std::min<uint64_t>(capacity, other.committed_bytes() / sizeof(Event)));
  }
  // Has these events, of which the first one has the given number.
  RingBuffer(uint32_t capacity, uint64_t first, const std::vector<Event>& events)
      : RingBuffer(capacity, Held{first, events}, {}) {}

  // Appends what `other` got since, while it has no writer. If some of that was overwritten, begins again
  // with what there is. Nobody else has this ring yet.
  void catch_up(const RingBuffer& other) noexcept {
    Event event;
    const uint64_t end = other.head();
    uint64_t begin = end;
    while (begin > head() && end - begin < capacity() && other.read(begin - 1, event)) --begin;
    if (begin != head()) begin_at(begin);
    for (; begin < end; ++begin) {
      other.read(begin, event);
      append(event);
    }
  }

  // Writer, under the writer lock. The event's ticks are not 0.
  void append(const Event& event) noexcept {
    const uint64_t sequence = slots_.count();
    Slot& slot = slots_[next_];
    announced_.store(sequence + 1, std::memory_order_relaxed);
    // A reader that sees one of these words then also sees the announcement. (Release stores, not a
    // fence, which ThreadSanitizer cannot follow; they cost nothing on x86.)
    const auto store = [&](size_t i, uint64_t word) {
      slot.words[i].store(word, std::memory_order_release);
    };
    // Words are composed in registers: reading fields back as words would wait for their stores.
    store(0, event.address);
    store(1, event.packed_size);
    store(2, event.stream);
    store(3, static_cast<uint64_t>(event.ticks));
    store(4, (uint64_t{event.alloc_stack} << 32) | event.stack);
    store(5, (uint64_t{static_cast<uint8_t>(event.device)} << 56) | (uint64_t{event.action} << 48) |
                 (uint64_t{event.metadata} << 32) | (uint64_t{event.pool} << 16) | event.phase);
    if (++next_ == limit_) go_on();
    slots_.set_count(sequence + 1);
  }

  // Writer. Replaces the stacks of an event that the ring holds. A reader gets one or the other.
  template <class Renewed>
  void renew_stacks(uint64_t sequence, const Renewed& renewed) noexcept {
    std::atomic<uint64_t>& word = slots_[slot_of(sequence)].words[4];
    const uint64_t stacks = word.load(std::memory_order_relaxed);
    const uint64_t alloc_stack = renewed(static_cast<uint32_t>(stacks >> 32));
    word.store(alloc_stack << 32 | renewed(static_cast<uint32_t>(stacks)), std::memory_order_release);
  }

  // The number of the next event. Any thread.
  uint64_t head() const noexcept { return slots_.count(std::memory_order_acquire); }
  // The number of the oldest event that is still held. Any thread.
  uint64_t oldest() const noexcept {
    const uint64_t end = head();
    const uint32_t most = capacity();
    return end - first_ > most ? end - most : first_;
  }
  uint32_t capacity() const noexcept { return capacity_.load(std::memory_order_acquire); }
  uint64_t committed_bytes() const noexcept {
    return std::min<uint64_t>(head() - first_, capacity()) * sizeof(Event);
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
  Held held(uint32_t most) const {
    const uint64_t end = head();
    const uint64_t begin = std::max(std::min(oldest(), end), end > most ? end - most : 0);
    std::vector<Event> events(end - begin);
    const uint64_t first = copy(begin, end, events.data());
    events.erase(events.begin(), events.end() - static_cast<ptrdiff_t>(end - first));
    return {first, std::move(events)};
  }
  RingBuffer(uint32_t capacity, const Held& held, const BoxPart& part)
      : RingBuffer(capacity, held.first, part) {
    for (const Event& event : held.events) append(event);
  }
  RingBuffer(uint32_t capacity, uint64_t first, const BoxPart& part)
      : slots_(capacity, part), capacity_(capacity) {
    if (slots_.entry() != nullptr) slots_.entry()->number = capacity;
    begin_at(first);
  }
  void begin_at(uint64_t first) noexcept {
    first_ = first;
    announced_.store(first, std::memory_order_relaxed);
    next_ = 0;
    if (slots_.entry() != nullptr) slots_.entry()->first = first;
    slots_.set_count(first);
    go_on();
  }
  // The next slot is the first that is not backed, or there is none.
  __attribute__((noinline, cold)) void go_on() noexcept {
    if (next_ == capacity()) next_ = 0;
    limit_ = std::min(static_cast<uint32_t>(slots_.back(size_t{next_} + 1)), capacity());
    if (limit_ != next_ || next_ == 0) return;
    capacity_.store(next_, std::memory_order_release);  // contract 7
    if (slots_.entry() != nullptr) slots_.entry()->number = next_;
    next_ = 0;
  }

  static constexpr size_t kWords = sizeof(Event) / sizeof(uint64_t);
  struct Slot {
    std::atomic<uint64_t> words[kWords];
  };

  bool read(uint64_t sequence, Event& out) const noexcept {
    const Slot& slot = slots_[slot_of(sequence)];
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
    const bool is_held = announced_.load(std::memory_order_relaxed) - sequence <= capacity();
    std::memcpy(&out, words, sizeof(out));  // the inverse of append(): little-endian
    return is_held && out.ticks != 0;       // 0: never written, or wiped by a fork
  }

  ReservedArray<Slot> slots_;
  uint64_t slot_of(uint64_t sequence) const noexcept { return (sequence - first_) % capacity(); }
  std::atomic<uint32_t> capacity_;
  uint64_t first_ = 0;    // number of the first event that this ring ever held
  uint32_t next_ = 0;     // slot of the next event, without the division
  uint32_t limit_ = 0;    // slots that are backed
  std::atomic<uint64_t> announced_{0};  // the number of events whose slot is or was being written
};

}  // namespace pytracer
