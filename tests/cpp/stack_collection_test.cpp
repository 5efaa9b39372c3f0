// A full stack table gives up the stacks that nothing refers to.
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu_events.h"
#include "fake_frame_walk.h"
#include "record/thread_slot.h"
#include "session/session.h"
#include "stack_here.h"
#include "view/events.h"

using namespace pytracer;

namespace {

constexpr uint64_t kBound = 1 << 17;  // room for about 4,000 stacks
constexpr uint64_t kManyStacks = 12'000;

SessionOptions options(uint32_t entries = 100) {
  return {{PYTRACER_CPU_DEVICE, 0}, entries, 32, kBound, Context::all};
}

// The number of a stack is in its instructions, so a stack that is read shows which one it is.
constexpr uint32_t kFrames = 6, kDigits = 16;
void run_stack(uint64_t number) {
  std::vector<RawFrame> frames;
  for (uint32_t i = 0; i < kFrames; ++i, number /= kDigits) {
    frames.push_back(frame_at(1 + i, static_cast<int32_t>(number % kDigits)));
  }
  run_frames(frames);
}
uint64_t number_of(const StackTable& stacks, uint32_t id) {
  CHECK(stacks.has_stack(id) && stacks.stack(id).frames == kFrames);
  uint64_t number = 0;
  for (uint64_t power = 1; id != 0; id = stacks.stack(id).outer, power *= kDigits) {
    number += power * static_cast<uint64_t>(stacks.frame(stacks.stack(id).frame).offset);
  }
  return number;
}

// A block's size is the number of the stack that allocates it.
void alloc_from(uint64_t address, uint64_t number) {
  run_stack(number);
  alloc(address, number);
}
void alloc_and_free(uint64_t first, uint64_t count, uint64_t address = 64) {
  for (uint64_t number = first; number < first + count; ++number) {
    alloc_from(address, number);
    release(address);
  }
}
void on_accelerator(uint8_t action, uint64_t address, uint64_t number) {
  run_stack(number);
  pytracer_event event{};
  event.action = action;
  event.address = address;
  event.size = number;
  event.ticks = 1;
  Recorder::record(&event);
}

// Checks all stacks of a view. Returns how many events and blocks have none.
uint64_t check_stacks(const View& view) {
  uint64_t without = 0;
  const auto check = [&](uint32_t id, uint64_t number) {
    if (id == 0) ++without;
    if (id != 0) CHECK(number_of(*view.stacks, id) == number);
  };
  for (const DeviceView& device : view.devices) {
    for (const Event& event : copy_events(device)) {
      if (event.action == PYTRACER_SNAPSHOT) continue;
      check(event.stack, event.size);
      if (!is_free(event)) continue;
      check(event.alloc_stack, device.is_cpu() ? event.size : event.size - 1);
    }
    for (const LiveBlock& block : device.capture.blocks) check(block.stack, block.size);
    for (const LiveBlock& block : device.capture.segments) check(block.stack, block.size);
  }
  return without;
}

StackTable::Stats stacks_of(Session& session) { return session.stats().stacks; }

}  // namespace

TEST(a_full_table_gives_up_stacks_that_nothing_refers_to) {
  Recorder::instance().set_walking(true);
  Session session(options());
  session.start();
  // GIVEN live blocks, a live segment, and a ring that has the free of a block, but no longer its
  // allocation
  for (uint64_t block = 1; block <= 50; ++block) alloc_from(block << 20, block);
  on_accelerator(PYTRACER_SEGMENT_ALLOC, 1 << 30, 51);
  on_accelerator(PYTRACER_ALLOC, 1 << 30, 60);
  for (int i = 0; i < 99; ++i) on_accelerator(PYTRACER_OOM, 0, 70);
  on_accelerator(PYTRACER_FREE_COMPLETED, 1 << 30, 61);
  // WHEN many times more stacks are recorded than fit
  for (uint64_t first = 1000; first < kManyStacks; first += 1000) {
    alloc_and_free(first, 1000);
    // THEN all stacks that a view shows are right, and next to none is missing
    CHECK(check_stacks(session.view()) == 0);
    CHECK(stacks_of(session).bytes <= kBound);
  }
  CHECK(stacks_of(session).freed > kManyStacks / 2 && stacks_of(session).dropped == 0);
  CHECK(session.view().devices[0].capture.blocks.size() == 50);
  CHECK(session.view().devices[1].capture.segments.size() == 1);
}

TEST(what_a_table_has_of_dropped_functions_is_given_up) {
  // GIVEN functions that are made, run once and dropped, as those of eval() are, each of a file of
  // its own
  Recorder::instance().set_walking(true);
  folder_of_files = "generated";
  Session session(options());
  session.start();
  for (uintptr_t code = 10'000; code < 20'000; ++code) {
    run_frames({frame_at(code, 1), frame_at(code, 2), frame_at(1, 3)});
    alloc(64, 8);
    release(64);
    if (code % 100 == 0) session.view().stacks->resolve();  // reads the names of living functions
    Recorder::code_destroyed(reinterpret_cast<const void*>(code));
  }
  // WHEN new functions run THEN they have stacks, and the table has next to nothing of the others
  const StackTable::Stats stats = stacks_of(session);
  CHECK(stats.dropped == 0 && stats.bytes <= kBound);
  CHECK(stats.codes < 1000 && stats.frames < 2000);
  // AND stacks that a view shows have their names
  run_frames({frame_at(50'000, 1), frame_at(1, 3)});
  alloc(64, 8);
  release(64);
  const View view = session.view();
  view.stacks->resolve();
  for (const Event& event : copy_events(view.devices[0])) {
    CHECK(event.stack != 0);
    const StackTable::Frame& frame = view.stacks->frame(view.stacks->stack(event.stack).frame);
    const std::string& name = view.stacks->string(view.stacks->name(frame));
    CHECK(name.size() == 6 && view.stacks->string(view.stacks->filename(frame)) ==
                                  "generated" + name.substr(1) + ".py");
  }
  folder_of_files.clear();
}

TEST(a_stack_that_a_view_shows_is_not_given_up) {
  Recorder::instance().set_walking(true);
  Session session(options());
  session.start();
  alloc_and_free(1, 100);
  std::optional<View> view = session.view();
  const uint64_t freed = stacks_of(session).freed;
  const std::vector<Event> events = copy_events(view->devices[0]);
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).freed == freed && stacks_of(session).dropped > 0);
  for (const Event& event : events) CHECK(number_of(*view->stacks, event.stack) == event.size);
  view.reset();
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).freed > freed && check_stacks(session.view()) == 0);
}

TEST(a_stack_of_a_stopped_session_is_not_given_up) {
  Recorder::instance().set_walking(true);
  Session stopped(options());
  stopped.start();
  alloc_from(1 << 20, 5);
  stopped.stop();
  Session session(options());
  session.start();
  for (int round = 0; round < 3; ++round) {
    alloc_and_free(1000, kManyStacks);
    CHECK(check_stacks(stopped.view()) == 0);
    session.change(100 + 50 * round, 32, Context::all);  // replaces the ring
  }
  // It keeps no other stack than its own.
  CHECK(stacks_of(session).freed > kManyStacks && stacks_of(session).dropped == 0);
  CHECK(stopped.view().devices[0].capture.blocks.size() == 1);
  stopped.start();  // forgets the blocks of the stop
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).freed > 0 && check_stacks(session.view()) == 0);
}

TEST(a_held_stack_is_not_given_up) {
  Recorder::instance().set_walking(true);
  Session session(options());
  session.start();
  // GIVEN events of two calls, of which the first ones are held, and those of many others
  const auto hold_newest = [&] {
    const View view = session.events();
    const uint32_t id = copy_events(view.devices[0]).back().stack;
    return std::pair(id, session.hold_returned({id}));
  };
  alloc_and_free(7, 1);
  auto [first, held] = hold_newest();
  for (uint64_t call = 0; call < 10'000; ++call) {
    alloc_and_free(1000 + call, 1);
    hold_newest();
  }
  alloc_and_free(8, 1);
  const uint32_t newest = hold_newest().first;
  // WHEN many more stacks are recorded than fit
  for (int i = 0; i < 3; ++i) alloc_and_free(1000, kManyStacks);
  // THEN the table still has those of the first and of the newest call, and has room for all others
  CHECK(stacks_of(session).freed > kManyStacks && stacks_of(session).dropped == 0);
  CHECK(number_of(*session.stacks(), first) == 7 && number_of(*session.stacks(), newest) == 8);
  CHECK(session.stacks()->is_held(first) && session.stacks()->is_held(newest));
  // AND what nobody holds is given up
  held.reset();
  for (int i = 0; i < 3; ++i) alloc_and_free(1000, kManyStacks);
  CHECK(!session.stacks()->is_held(first) && number_of(*session.stacks(), newest) == 8);
}

TEST(nothing_is_given_up_before_hooks_have_ended) {
  Recorder::instance().set_walking(true);
  Session session(options());
  session.start();
  alloc_and_free(1, 1);
  std::atomic<bool> in_hook{false}, stop{false};
  std::thread slow([&] {
    const HookScope scope(*thread_slot());
    in_hook = true;
    while (!stop) std::this_thread::yield();
  });
  while (!in_hook) std::this_thread::yield();
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).freed == 0 && stacks_of(session).dropped > 0);
  stop = true;
  slow.join();
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).freed > 0 && check_stacks(session.view()) == 0);
}

// Without that, a new ring could bring back events whose stacks were not marked.
TEST(stacks_are_marked_again_after_a_ring_was_replaced) {
  StackTable table(kBound);
  run_stack(1);
  const uint32_t first = stack_here(table);
  run_stack(2);
  const uint32_t second = stack_here(table);
  table.begin_collection();
  table.clear_stale();
  table.make_marks_stale();
  CHECK(table.sweep() == StackTable::Sweep::marks_are_stale && table.has_stack(first));
  table.clear_stale();
  table.mark(&second, 1);
  CHECK(table.sweep() == StackTable::Sweep::done);
  CHECK(!table.has_stack(first) && number_of(table, second) == 2);
}

TEST(a_larger_ring_makes_the_marks_stale) {
  Session session(options());
  session.start();
  StackTable& table = *session.stacks();
  table.begin_collection();
  table.clear_stale();
  session.change(200, 32, Context::all);
  CHECK(table.sweep() == StackTable::Sweep::marks_are_stale);
}

TEST(a_stack_that_is_used_again_during_a_collection_stays) {
  StackTable table(kBound);
  run_stack(1);
  const uint32_t id = stack_here(table);
  CHECK(table.find(key_here(32, table.seed())) == id);
  table.begin_collection();
  CHECK(table.find(key_here(32, table.seed())) == 0);  // no hook finds it without marking it
  CHECK(stack_here(table) == id);
  CHECK(table.sweep() == StackTable::Sweep::done && number_of(table, id) == 1);
}

TEST(a_table_full_of_stacks_in_use_is_not_searched_all_the_time) {
  Recorder::instance().set_walking(true);
  Session session(options(100'000));
  session.start();
  const uint64_t seed = session.stacks()->seed();
  alloc_and_free(0, 20'000);
  CHECK(stacks_of(session).dropped > 10'000);
  // Each collection has a new seed, and looks at some 4,000 stacks and up to 80,000 ids.
  CHECK(session.stacks()->seed() - seed < 30);
}

TEST(stacks_are_given_up_while_threads_record) {
  Recorder::instance().set_walking(true);
  Session session(options());
  session.start();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 3; ++t) {
    threads.emplace_back([&stop, t] {
      uint64_t number = t << 20;
      for (uint64_t block = 0; block < 20; ++block) alloc_from(t << 40 | block << 20, block);
      while (!stop) alloc_and_free(number++, 1, t << 32);
    });
  }
  uint32_t entries = 100;
  for (int i = 0; i < 300; ++i) {
    if (i % 30 == 29) session.change(entries += 50, 32, Context::all);  // replaces the ring
    if (i % 50 == 49) Recorder::code_destroyed(frame_at(1, 0).code);
    if (i % 40 == 39) {
      session.stop();
      check_stacks(session.view());
      session.start();
    }
    check_stacks(session.view());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  check_stacks(session.view());
  CHECK(stacks_of(session).freed > 0 && stacks_of(session).bytes <= kBound);
}

TEST(functions_are_dropped_while_threads_record) {
  Recorder::instance().set_walking(true);
  Session session(options());
  session.start();
  std::atomic<bool> stop{false};
  std::mutex gil;
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= 3; ++t) {
    threads.emplace_back([&stop, &gil, t] {
      for (uint64_t code = t << 20; !stop; ++code) {
        run_frames({frame_at(code, 1), frame_at(1, 3)});
        alloc(t << 32, code);
        release(t << 32);
        std::lock_guard lock(gil);
        Recorder::code_destroyed(reinterpret_cast<const void*>(code));
      }
    });
  }
  for (int i = 0; i < 100 || stacks_of(session).freed < 10'000; ++i) {
    const View view = session.view();
    {
      std::lock_guard lock(gil);
      view.stacks->resolve();
    }
    for (const Event& event : copy_events(view.devices[0])) {
      if (event.stack == 0) continue;
      const StackTable::Frame& frame = view.stacks->frame(view.stacks->stack(event.stack).frame);
      CHECK(view.stacks->string(view.stacks->name(frame)) == "f" + std::to_string(event.size));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(stacks_of(session).bytes <= kBound);
}
