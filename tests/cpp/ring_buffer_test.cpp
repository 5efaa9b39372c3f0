#include "record/ring_buffer.h"

#include <thread>
#include <vector>

#include "check.h"
#include "threads.h"

using namespace pytracer;

namespace {
Event numbered(uint64_t number) {
  Event event{};
  event.address = number;
  event.packed_size = number * 3;
  event.stream = ~number;
  event.ticks = static_cast<int64_t>(number + 1);
  event.alloc_stack = static_cast<uint32_t>(number);
  return event;
}
bool whole(const Event& event, uint64_t number) {
  return event.address == number && event.packed_size == number * 3 && event.stream == ~number &&
         event.ticks == static_cast<int64_t>(number + 1) && event.alloc_stack == static_cast<uint32_t>(number);
}
}  // namespace

TEST(ring_keeps_the_newest) {
  for (const uint32_t capacity : {1u, 2u, 7u, 64u}) {
    RingBuffer ring(capacity);
    for (uint64_t n = 0; n < 200; ++n) {
      CHECK(ring.head() == n);
      CHECK(ring.oldest() == (n > capacity ? n - capacity : 0));
      std::vector<Event> out(n + 1);
      CHECK(ring.copy(0, n, out.data()) == ring.oldest());
      for (uint64_t i = ring.oldest(); i < n; ++i) CHECK(whole(out[i], i));
      ring.append(numbered(n));
    }
  }
}

TEST(ring_grows_with_its_events_and_numbers) {
  RingBuffer small(5);
  for (uint64_t n = 0; n < 13; ++n) small.append(numbered(n));
  RingBuffer large(20, small);
  CHECK(large.head() == 13 && large.oldest() == 8);
  for (uint64_t n = 13; n < 15; ++n) small.append(numbered(n));
  large.catch_up(small);
  CHECK(large.head() == 15 && large.oldest() == 8);
  CHECK(large.committed_bytes() == 7 * sizeof(Event));
  for (uint64_t n = 15; n < 40; ++n) large.append(numbered(n));
  CHECK(large.oldest() == 20);
  std::vector<Event> out(20);
  CHECK(large.copy(20, 40, out.data()) == 20);
  for (uint64_t i = 0; i < 20; ++i) CHECK(whole(out[i], 20 + i));
}

TEST(ring_shrinks_to_its_newest_events) {
  for (const uint64_t events : {0, 1, 3, 12, 13, 50}) {
    RingBuffer large(20);
    for (uint64_t n = 0; n < events; ++n) large.append(numbered(n));
    RingBuffer small(5, large);
    small.catch_up(large);
    CHECK(small.head() == events);
    CHECK(small.oldest() == (events > 5 ? events - 5 : 0));
    for (uint64_t n = events; n < events + 3; ++n) small.append(numbered(n));
    std::vector<Event> out(5);
    const uint64_t begin = small.oldest(), end = small.head();
    CHECK(small.copy(begin, end, out.data()) == begin);
    for (uint64_t n = begin; n < end; ++n) CHECK(whole(out[n - begin], n));
  }
}

TEST(ring_grows_while_its_writer_writes) {
  for (int round = 0; round < 20; ++round) {
    RingBuffer small(1000);
    Repeated writer([&small, n = uint64_t{0}]() mutable { small.append(numbered(n++)); });
    while (small.head() < 2000) std::this_thread::yield();
    RingBuffer large(5000, small);
    writer.stop();
    large.catch_up(small);
    CHECK(large.head() == small.head() && large.head() - large.oldest() >= 1000);
    std::vector<Event> out(5000);
    const uint64_t begin = large.oldest();
    CHECK(large.copy(begin, large.head(), out.data()) == begin);
    for (uint64_t n = begin; n < large.head(); ++n) CHECK(whole(out[n - begin], n));
  }
}

TEST(ring_that_was_overtaken_begins_again) {
  for (const uint32_t capacity : {3u, 20u}) {
    RingBuffer small(5);
    uint64_t n = 0;
    for (; n < 13; ++n) small.append(numbered(n));
    RingBuffer other(capacity, small);
    for (; n < 19; ++n) small.append(numbered(n));  // event 13 is gone
    other.catch_up(small);
    CHECK(other.head() == 19 && other.oldest() == (capacity == 3 ? 16 : 14));
    for (; n < 60; ++n) other.append(numbered(n));
    std::vector<Event> out(capacity);
    CHECK(other.oldest() == 60 - capacity && other.copy(60 - capacity, 60, out.data()) == 60 - capacity);
    for (uint64_t i = 0; i < capacity; ++i) CHECK(whole(out[i], 60 - capacity + i));
  }
}

TEST(ring_slots_that_were_wiped_are_not_events) {
  RingBuffer ring(4);
  Event out;
  CHECK(ring.copy(0, 1, &out) == 1);  // as after a fork, the slot was never written
}

// A reader next to a writer that laps it all the time reads only complete events.
TEST(ring_reader_detects_overwritten_events) {
  for (const uint32_t capacity : {1u, 4u, 64u}) {
    RingBuffer ring(capacity);
    const Repeated writer([&ring, n = uint64_t{0}]() mutable { ring.append(numbered(n++)); });
    uint64_t losses = 0, reads = 0;
    std::vector<Event> out(capacity);
    const auto wanted = static_cast<uint64_t>(amount(4'000, 20'000));
    while (losses < 5 * wanted || reads < wanted) {
      const uint64_t begin = ring.oldest();
      const uint64_t end = std::min(ring.head(), begin + capacity);
      const uint64_t good = ring.copy(begin, end, out.data());
      CHECK(good >= begin && good <= end);
      for (uint64_t n = good; n < end; ++n) CHECK(whole(out[n - begin], n));
      losses += good - begin;
      reads += end - good;
    }
  }
}
