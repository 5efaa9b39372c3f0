// A full stack table gives up the stacks that nothing refers to: a new generation takes over the others.
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
#include "threads.h"
#include "view/view.h"

using namespace pytracer;

namespace {

constexpr uint64_t kBound = 1 << 17;  // room for about 2 * 2,500 stacks
constexpr uint64_t kManyStacks = 25'000;

SessionOptions options(uint32_t entries = 100) {
  return {{PYTRACER_CPU_DEVICE, 0}, entries, 32, kBound, Context::all};
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
  record(action, address, number, 0);
}

// Checks all stacks of a view. Returns how many events and blocks have none.
uint64_t check_stacks(const View& view) {
  uint64_t without = 0;
  const auto check = [&](uint32_t id, uint64_t number) {
    if (id == 0) ++without;
    if (id != 0) CHECK(number_of(*view.stacks, id) == number && view.stacks->generation_of(id)->is_used(id));
  };
  for (const DeviceView& device : view.devices) {
    for (const Event& event : copy_events(device)) {
      if (event.action == PYTRACER_SNAPSHOT) continue;
      check(event.stack, event.size());
      if (!is_free(event)) continue;
      check(event.alloc_stack, device.is_cpu() ? event.size() : event.size() - 1);
    }
    for (const LiveBlock& block : device.capture.blocks) check(block.stack, block.size);
    for (const LiveBlock& block : device.capture.segments) check(block.stack, block.size);
  }
  return without;
}

StackTable::Stats stacks_of(Session& session) { return session.stats().stacks; }

}  // namespace

TEST(a_full_table_gives_up_stacks_that_nothing_refers_to) {
  for (const uint32_t blocks : {50, 1000}) {
    Started session(options(2 * blocks));
    // GIVEN live blocks, a live segment, and a ring that has the free of a block, but no longer its
    // allocation
    for (uint64_t block = 1; block <= blocks; ++block) alloc_from(block << 20, block);
    on_accelerator(PYTRACER_SEGMENT_ALLOC, 1 << 30, 51);
    on_accelerator(PYTRACER_ALLOC, 1 << 30, 60);
    for (uint32_t i = 0; i < 2 * blocks; ++i) on_accelerator(PYTRACER_OOM, 0, 70);
    on_accelerator(PYTRACER_FREE_COMPLETED, 1 << 30, 61);
    // WHEN many times more stacks are recorded than fit
    for (uint64_t first = 1000; first < kManyStacks; first += 1000) {
      alloc_and_free(first, 1000);
      // THEN all stacks that a view shows are right, and next to none is missing
      CHECK(check_stacks(session.view()) == 0);
      CHECK(stacks_of(session).bytes <= kBound);
    }
    CHECK(stacks_of(session).generations > 5 && stacks_of(session).dropped == 0);
    CHECK(session.view().devices[0].capture.blocks.size() == blocks);
    CHECK(session.view().devices[1].capture.segments.size() == 1);
  }
}

TEST(what_a_table_has_of_dropped_functions_is_given_up) {
  // GIVEN functions that are made, run once and dropped, as those of eval() are, each of a file of
  // its own
  folder_of_files = "generated";
  Started session(options());
  for (uintptr_t code = 10'000; code < 20'000; ++code) {
    run_frames({frame_at(code, 1), frame_at(code, 2), frame_at(1, 3)});
    alloc(64, 8);
    release(64);
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
  for (const Event& event : copy_events(view.devices[0])) {
    CHECK(event.stack != 0);
    const std::string name = name_of(*view.stacks, event.stack);
    CHECK(name.size() == 6);
    CHECK(filename_of(*view.stacks, event.stack) == "generated" + name.substr(1) + ".py");
  }
  folder_of_files.clear();
}

TEST(a_stack_that_a_view_shows_is_not_given_up) {
  Started session(options());
  alloc_and_free(1, 100);
  std::optional<View> view = session.view();
  const std::vector<Event> events = copy_events(view->devices[0]);
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).generations == 2 && stacks_of(session).dropped > 0);
  for (const Event& event : events) CHECK(number_of(*view->stacks, event.stack) == event.size());
  view.reset();
  const uint64_t dropped = stacks_of(session).dropped;
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).generations > 5 && stacks_of(session).dropped < dropped + 10);
  CHECK(check_stacks(session.view()) == 0);
}

// The view of a ring reads stacks that were renewed after it was made.
TEST(a_view_shows_what_was_renewed_meanwhile) {
  Started session(options());
  for (uint64_t block = 1; block <= 50; ++block) alloc_from(block << 20, block);
  const View view = session.view();
  for (uint64_t number = 1000; stacks_of(session).generations == 1; ++number) {
    on_accelerator(PYTRACER_OOM, 0, number);
  }
  for (uint64_t number = 9000; number < 9200; ++number) on_accelerator(PYTRACER_OOM, 0, number);
  const uint32_t before = view.devices[0].capture.blocks[0].stack;
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(view.stacks->generation_of(events[0].stack) != view.stacks->generation_of(before));
  CHECK(check_stacks(view) == 0);
}

TEST(a_stack_of_a_stopped_session_is_not_given_up) {
  Started stopped(options());
  alloc_from(1 << 20, 5);
  stopped.stop();
  Started session(options());
  for (uint32_t round = 0; round < 3; ++round) {
    alloc_and_free(1000, kManyStacks);
    CHECK(check_stacks(stopped.view()) == 0);
    session.change(100 + 50 * round, 32, Context::all);  // replaces the ring
  }
  CHECK(stacks_of(session).generations > 10 && stacks_of(session).dropped == 0);
  CHECK(stopped.view().devices[0].capture.blocks.size() == 1);
  stopped.start();  // forgets the blocks of the stop
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).dropped == 0 && check_stacks(session.view()) == 0);
}

TEST(a_generation_that_python_has_is_kept) {
  Started session(options());
  const auto newest = [&] { return copy_events(session.events().devices[0]).back().stack; };
  alloc_and_free(7, 1);
  const uint32_t first = newest();
  StackTable::Generations kept = session.keep_returned();
  for (int i = 0; i < 3; ++i) alloc_and_free(1000, kManyStacks);
  session.keep_returned();
  CHECK(number_of(*session.stacks(), first) == 7 && stacks_of(session).dropped == 0);
  kept.clear();
  CHECK(session.stacks()->generation_of(first) == nullptr);
}

TEST(nothing_is_given_up_before_hooks_have_ended) {
  Started session(options());
  alloc_and_free(1, 1);
  std::atomic<bool> in_hook{false}, stop{false};
  std::thread slow([&] {
    const HookScope scope(*thread_slot());
    in_hook = true;
    while (!stop) std::this_thread::yield();
  });
  while (!in_hook) std::this_thread::yield();
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).generations == 2 && stacks_of(session).dropped > 0);
  stop = true;
  slow.join();
  alloc_and_free(1000, kManyStacks);
  CHECK(stacks_of(session).generations > 5 && check_stacks(session.view()) == 0);
}

// Otherwise a new ring could bring back events whose stacks were not renewed.
TEST(rings_are_looked_at_again_after_one_was_replaced) {
  StackTable table(kBound);
  run_stack(1);
  const uint32_t old = stack_here(table);
  CHECK(table.begin_generation());
  table.note_replaced_ring();
  CHECK(table.end_generation() == StackTable::End::again && table.generation_of(old));
  const uint32_t renewed = table.renewed(old);
  CHECK(renewed != old && table.renewed(old) == renewed && table.renewed(renewed) == renewed);
  CHECK(table.end_generation() == StackTable::End::done);
  CHECK(!table.generation_of(old) && number_of(table, renewed) == 1);
  // WHEN the stack is used again THEN it has the same number
  CHECK(stack_here(table) == renewed && table.stats().stacks == 1);
}

// Another hook may be in the old tree until the hooks that began before the generation have ended.
TEST(a_backward_stack_copies_nothing_from_an_older_generation) {
  StackTable table(kBound);
  run_stack(1);
  const uint32_t old = stack_here(table);
  CHECK(table.begin_generation());
  // WHEN the thread's own stack, or the forward stack, is of the older generation
  // THEN both are to be found again, and the new generation has nothing
  CHECK(table.intern_backward({old, 0, 1, false}) == kUnknownStack);
  CHECK(table.intern_backward({0, old, 1, true}) == kUnknownStack);
  CHECK(table.generations()[0]->size() == 0);
  const uint32_t fresh = stack_here(table);
  CHECK(table.intern_backward({fresh, old, 1, true}) == kUnknownStack);
  const uint32_t id = table.intern_backward({fresh, fresh, 1, true});
  const auto tree = table.generation_of(id);
  CHECK(tree->backward(id).own == fresh && tree->backward(id).forward == fresh);
}

// As Recorder and StackRenewal call the table, but with a generation at every step.
TEST(backward_stacks_are_interned_while_a_hook_is_in_the_older_generation) {
  StackTable table(1 << 22);
  const Repeated hook([&table, n = uint64_t{0}]() mutable {
    const HookScope scope(*thread_slot());
    run_stack(n++ % 4096);
    stack_here(table);
  });
  for (uint64_t round = 0, rounds = static_cast<uint64_t>(amount(200, 5000)); round < rounds; ++round) {
    run_stack(round % 64);
    uint32_t own = stack_here(table);
    CHECK(table.begin_generation());
    note_hooks();
    uint32_t id = table.intern_backward({own, 0, 1, false});
    while (id == kUnknownStack) {
      own = stack_here(table);
      id = table.intern_backward({own, 0, 1, false});
    }
    CHECK(number_of(table, table.generation_of(id)->backward(id).own) == round % 64);
    while (!noted_hooks_have_ended()) std::this_thread::yield();
    CHECK(table.renewed(id) == id && table.end_generation() == StackTable::End::done);
  }
}

TEST(a_larger_ring_is_looked_at_again) {
  Started session(options());
  const auto table = session.stacks();
  CHECK(table->begin_generation());
  session.change(200, 32, Context::all);
  CHECK(table->end_generation() == StackTable::End::pinned);  // by `table`
}

TEST(copies_always_have_room) {
  // GIVEN a table whose stacks are all in use, and a new generation
  StackTable table(kBound);
  std::vector<uint32_t> stacks;
  uint64_t number = 0;
  while (table.stats().dropped == 0) {
    run_stack(number++);
    stacks.push_back(stack_here(table));
  }
  stacks.pop_back();
  CHECK(table.begin_generation());
  // WHEN more stacks are made than fit, before the others are copied
  for (uint64_t other = 0; other < 10'000; ++other) {
    run_stack(100'000 + other);
    stack_here(table);
  }
  // THEN each of the others is copied
  for (size_t i = 0; i < stacks.size(); ++i) {
    const uint32_t renewed = table.renewed(stacks[i]);
    CHECK(renewed != 0 && number_of(table, renewed) == i);
  }
  CHECK(table.end_generation() == StackTable::End::done && table.stats().bytes <= kBound);
}

TEST(a_table_full_of_stacks_in_use_is_not_searched_all_the_time) {
  Started session(options(100'000));
  alloc_and_free(0, 20'000);
  CHECK(stacks_of(session).dropped > 10'000);
  // Each generation looks at some 2,500 stacks and up to 80,000 ids.
  CHECK(stacks_of(session).generations < 30);
}

TEST(stacks_are_given_up_while_threads_record) {
  Started session(options());
  std::deque<Repeated> threads;
  for (uint64_t t = 1; t <= 3; ++t) {
    for (uint64_t block = 0; block < 20; ++block) alloc_from(t << 40 | block << 20, block);
    threads.emplace_back([t, number = t << 20]() mutable { alloc_and_free(number++, 1, t << 32); });
  }
  uint32_t entries = 100;
  for (int i = 0, rounds = amount(120, 300); i < rounds; ++i) {
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
  threads.clear();
  check_stacks(session.view());
  CHECK(stacks_of(session).generations > 2 && stacks_of(session).bytes <= kBound);
}

TEST(functions_are_dropped_while_threads_record) {
  Started session(options());
  std::mutex gil;
  std::deque<Repeated> threads;
  for (uint64_t t = 1; t <= 3; ++t) {
    threads.emplace_back([&gil, t, code = t << 20]() mutable {
      run_frames({frame_at(code, 1), frame_at(1, 3)});
      alloc(t << 32, code);
      release(t << 32);
      std::lock_guard lock(gil);
      Recorder::code_destroyed(reinterpret_cast<const void*>(code++));
    });
  }
  for (int i = 0; i < 100 || stacks_of(session).generations < 5; ++i) {
    const View view = session.view();
    for (const Event& event : copy_events(view.devices[0])) {
      if (event.stack == 0) continue;
      CHECK(name_of(*view.stacks, event.stack) == "f" + std::to_string(event.size()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  threads.clear();
  CHECK(stacks_of(session).bytes <= kBound);
}
