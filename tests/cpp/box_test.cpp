// What is recorded into a box is found there by its reader.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "check.h"
#include "cpu_events.h"
#include "fake_frame_walk.h"
#include "memory_bound.h"
#include "restore/box_reader.h"
#include "restore/restored_view.h"
#include "session/session.h"
#include "stack_here.h"
#include "threads.h"
#include "view/view.h"

using namespace pytracer;

namespace {

constexpr uint64_t kStackBytes = 1 << 20;  // room for some 2 * 8,000 stacks
constexpr uint32_t kEntries = 5'000;

SessionOptions options() { return {{PYTRACER_CPU_DEVICE}, kEntries, 32, kStackBytes, Context::all}; }

int empty_file() { return memfd_create("box", MFD_CLOEXEC); }

uint64_t space_of(int file) {
  struct stat about {};
  CHECK(fstat(file, &about) == 0);
  return static_cast<uint64_t>(about.st_blocks) * 512;
}

// Each thread allocates in an address range of its own, from stacks that are new again and again, so that
// generations are renewed, and keeps some blocks. The size of a block is its stack's innermost offset.
void work(uint64_t thread, int32_t count) {
  const uint64_t base = (thread + 1) << 32;
  for (int32_t i = 1; i <= count; ++i) {
    run_frames({frame_at(1 + thread, i), frame_at(100 + static_cast<uintptr_t>(i % 50), i / 50)});
    alloc(base + static_cast<uint64_t>(i) * 64, static_cast<uint64_t>(i));
    if (i % 16 != 0) release(base + static_cast<uint64_t>(i) * 64);
  }
}

}  // namespace

TEST(a_box_has_what_threads_record) {
  // GIVEN a session whose tables lie in a box
  const int file = empty_file();
  Registry::instance().open_box(dup(file));
  Started session(options());
  // WHEN threads record more than the ring and the stack table hold
  on_threads(3, [](uint64_t t) { work(t, 5'000); });
  for (uint64_t t = 3; session.stats().stacks.generations <= 2; ++t) work(t, 1'000);  // a thread makes them
  // THEN the reader finds the same live blocks, and the same events but for the oldest one
  const View view = session.view();
  const BoxReader box(file);
  CHECK(!box.is_cut());
  const std::vector<DeviceNow> now = devices_now(box);
  uint64_t live_bytes = 0;
  for (const LiveBlock& block : view.devices[0].capture.blocks) live_bytes += block.size;
  CHECK(now.size() == 1 && now[0].allocated_bytes == live_bytes && now[0].recorded == view.devices[0].capture.end);
  const std::vector<Event> events = copy_events(view.devices[0]);
  const BoxReader::Array* const ring = box.newest(BoxKind::ring, PYTRACER_CPU_DEVICE);
  CHECK(ring->number == kEntries && ring->count == view.devices[0].capture.end);
  const std::vector<Event> held = box.items<Event>(ring, 0, kEntries);
  const auto stacks = restored_stacks(box, 0, 0);
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& event = held[(ring->count - events.size() + i) % kEntries];
    CHECK(event.address == events[i].address && event.packed_size == events[i].packed_size &&
          event.stack == events[i].stack && event.ticks == events[i].ticks);
    // AND their stacks, by name
    if (event.stack == 0) continue;  // dropped, while a generation took over
    CHECK(stacks->generation_of(event.stack) != nullptr);
    CHECK(name_of(*stacks, event.stack) == name_of(*view.stacks, event.stack));
    CHECK(frame_of(*stacks, event.stack, 0).offset == frame_of(*view.stacks, event.stack, 0).offset);
  }
  close(file);
}

TEST(a_box_whose_descriptor_is_closed_writes_to_no_other_file) {
  // GIVEN a box whose descriptor is closed behind its back, and is another file's then
  const int file = empty_file(), taken = dup(file), other = empty_file();
  Registry::instance().open_box(taken);
  Started session(options());
  work(0, 10);
  CHECK(dup2(other, taken) == taken);
  // WHEN more is recorded than the file had space for
  work(0, 4'000);
  for (uint64_t i = 0; i < 10'000; ++i) alloc(uint64_t{9} << 32 | i * 64);
  // THEN nothing is missing, in the box neither unless it says so, and the other file is as it was
  const View view = session.view();
  CHECK(copy_events(view.devices[0]).size() == kEntries);
  CHECK(session.stats().stacks.dropped == 0);
  const BoxReader box(file);
  uint64_t live_bytes = 0;
  for (const LiveBlock& block : view.devices[0].capture.blocks) live_bytes += block.size;
  CHECK(box.is_cut() || devices_now(box)[0].allocated_bytes == live_bytes);
  struct stat about {};
  CHECK(fstat(other, &about) == 0 && about.st_size == 0 && about.st_blocks == 0);
  close(taken);
  close(other);
  close(file);
}

// A hook waits for no disk: a thread makes the file longer before the hook needs it.
TEST(a_part_of_a_box_grows_before_it_is_full) {
  Box box(empty_file());
  constexpr size_t kItem = 64, kAll = 64 << 20;
  const Box::Place place = box.take({nullptr, BoxKind::nodes}, kAll, kItem);
  const auto backed = [&] { return place.entry->backed.load(); };
  size_t usable = 0;
  for (size_t used = kItem; used < kAll; used += kItem) {
    if (used > usable) {
      const size_t before = backed();
      usable = box.back(place, used);
      CHECK(used <= usable && usable <= before && backed() == before);  // the hook took no space
      place.entry->count = used / kItem;
      box.keep_ahead();  // as the thread does at once; at most half of what was left is used before
      CHECK(usable == kAll || usable < backed());
    }
  }
  CHECK(backed() == kAll);
}

TEST(a_generation_of_a_box_is_made_and_destroyed_outside_of_hooks) {
  const auto box = std::make_shared<Box>(empty_file());
  box->set_keeper(true);
  StackTable table(kStackBytes, box);
  run_frames({frame_at(1, 1)});
  const uint32_t first = stack_here(table);
  CHECK(!table.begin_generation());  // it is not made yet
  table.look_after();
  CHECK(table.begin_generation());
  const uint32_t renewed = table.renewed(first);
  CHECK(renewed != first && table.end_generation() == StackTable::End::done);
  CHECK(table.generation_of(first) != nullptr);  // it is still there
  CHECK(!table.begin_generation());
  table.look_after();
  CHECK(table.generation_of(first) == nullptr && table.begin_generation());
  CHECK(table.renewed(renewed) > renewed && table.end_generation() == StackTable::End::done);
  box->set_keeper(false);
}

TEST(a_larger_ring_takes_space_for_what_it_holds) {
  constexpr uint32_t kMost = 1'000'000;
  const int file = empty_file();
  const auto box = std::make_shared<Box>(dup(file));
  RingBuffer small(1000);
  Event event{};
  event.ticks = 1;
  while (small.head() < kMost) small.append(event);
  const RingBuffer large(kMost, small, {box, BoxKind::ring});
  box->keep_ahead();
  CHECK(large.head() - large.oldest() == 1000 && space_of(file) < 10 << 20);
  close(file);
}

// Hooks wait for it.
TEST(a_ring_that_catches_up_makes_its_file_no_longer) {
  constexpr uint32_t kMost = 300'000;  // more than a ring gets at first
  const int file = empty_file();
  RingBuffer small(kMost);
  Event event{};
  event.ticks = 1;
  while (small.head() < kMost + 1) small.append(event);
  RingBuffer other(2 * kMost, small, {std::make_shared<Box>(dup(file)), BoxKind::ring});
  while (small.head() < 3 * kMost) small.append(event);
  const uint64_t before = space_of(file);
  other.catch_up(small);
  CHECK(other.head() == 3 * kMost && other.oldest() == 2 * kMost && space_of(file) == before);
  close(file);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need memory
TEST(a_generation_without_memory_is_not_asked_for_all_the_time) {
  const auto box = std::make_shared<Box>(empty_file());
  box->set_keeper(true);
  StackTable table(64 << 20, box);
  uint64_t number = 0;
  const auto add = [&] {
    run_frames({frame_at(1, static_cast<int32_t>(++number))});
    return stack_here(table);
  };
  while (!table.wants_generation()) add();
  const MemoryBound none(RLIMIT_AS, 4096);
  if (!none.holds) return;
  table.look_after();
  none.lift();
  CHECK(!table.wants_generation());
  add();
  CHECK(table.wants_generation());  // with the next new stack
  table.look_after();
  CHECK(table.begin_generation());
  box->set_keeper(false);
}

TEST(a_ring_without_memory_for_more_slots_keeps_its_numbers) {
  // GIVEN a ring in a box, whose first event is not number 0
  constexpr uint32_t kMost = 400'000;
  const int file = empty_file();
  const auto box = std::make_shared<Box>(dup(file));
  const auto numbered = [](uint64_t number) {
    Event event{};
    event.address = event.packed_size = number;
    event.ticks = static_cast<int64_t>(number + 1);
    event.device = PYTRACER_CPU_DEVICE;
    return event;
  };
  RingBuffer small(5);
  uint64_t number = 0;
  for (; number < 13; ++number) small.append(numbered(number));
  RingBuffer ring(kMost, small, {box, BoxKind::ring, PYTRACER_CPU_DEVICE});
  std::vector<Event> held(kMost);
  // WHEN neither the file grows any more, nor the kernel gives other memory
  box->close_file();
  const MemoryBound none(RLIMIT_DATA, 4096);
  if (!none.holds) return;
  for (; number < 2 * kMost; ++number) ring.append(numbered(number));
  none.lift();
  // THEN it has fewer slots, and their events have their numbers, also for the box's reader
  const uint32_t slots = ring.capacity();
  CHECK(100'000 < slots && slots < kMost && ring.oldest() == number - slots);
  CHECK(ring.copy(ring.oldest(), number, held.data()) == ring.oldest());
  for (uint64_t i = 0; i < slots; ++i) CHECK(held[i].address == number - slots + i);
  const BoxReader reader(file);
  const BoxReader::Array* const array = reader.newest(BoxKind::ring, PYTRACER_CPU_DEVICE);
  CHECK(array->number == slots && array->first == 8);
  const std::vector<Event> read = reader.items<Event>(array, 0, slots);
  for (uint64_t n = number - slots; n < number; ++n) CHECK(read[(n - array->first) % slots].address == n);
  close(file);
}
#endif

TEST(a_second_session_has_no_box_and_a_later_one_may) {
  const int file = empty_file();
  Registry::instance().open_box(dup(file));
  {
    Started session(options());
    bool is_refused = false;
    try {
      Registry::instance().open_box(file);  // closes it
    } catch (const Error&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
  Registry::instance().open_box(empty_file());  // the last session is gone, and so is its box
  Started session(options());
  session.stop();
}
