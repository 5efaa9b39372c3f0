#include "record/phases.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "record/clock.h"
#include "threads.h"

using namespace pytracer;

namespace {

Phases& phases() { return Phases::instance(); }
// The thread's phase, or the one that it inherits if it runs no Python code.
std::string current() {
  const uint16_t own = thread_slot()->phase;
  return std::string(phases().name(own != 0 ? own : phases().process_phase()));
}

}  // namespace

TEST(a_thread_is_in_its_own_innermost_phase) {
  CHECK(current().empty());
  const uint64_t outer = phases().enter("outer").entry;
  const uint64_t inner = phases().enter("inner").entry;
  CHECK(current() == "inner");
  phases().leave(inner);
  CHECK(current() == "outer");
  phases().leave(inner);  // leaving twice does no harm
  CHECK(current() == "outer");
  phases().leave(outer);
  CHECK(current().empty());
}

TEST(phases_may_be_left_in_any_order_and_on_any_thread) {
  const uint64_t outer = phases().enter("outer").entry;
  const uint64_t inner = phases().enter("inner").entry;
  phases().leave(outer);
  CHECK(current() == "inner");
  on_another_thread([&] { phases().leave(inner); });
  CHECK(current().empty());
}

TEST(a_thread_in_no_phase_is_in_the_process_phase) {
  const uint64_t first = phases().enter("first").entry;
  on_another_thread([&] {
    CHECK(current() == "first");
    const uint64_t own = phases().enter("own").entry;
    CHECK(current() == "own");
    on_another_thread([] { CHECK(current() == "own"); });  // the phase entered last
    phases().leave(own);
    CHECK(current() == "first");
  });
  CHECK(current() == "first");
  phases().leave(first);
  on_another_thread([] { CHECK(current().empty()); });
}

TEST(the_phases_of_a_thread_that_ended_are_over) {
  init_thread_slots();
  // GIVEN a thread that ended within a phase
  uint64_t dead = 0;
  const ThreadSlot* its_slot = nullptr;
  on_another_thread([&] {
    its_slot = thread_slot();
    phases().enter("outer");
    dead = phases().enter("dead").entry;
  });
  // THEN the process is in none of its phases
  CHECK(current().empty());
  // AND neither is the next thread with its slot, before and after entering a phase
  on_another_thread([&] {
    CHECK(thread_slot() == its_slot);
    CHECK(current().empty());
    const uint64_t own = phases().enter("own").entry;
    phases().leave(dead);  // leaving late does no harm
    CHECK(current() == "own");
    phases().leave(own);
    CHECK(current().empty());
  });
}

TEST(phases_that_a_thread_ends_within_are_reported_inner_within_outer) {
  init_thread_slots();
  const int64_t before = now_ticks();
  uint16_t outer = 0, inner = 0;
  on_another_thread([&] {
    outer = phases().enter("outer").phase;
    inner = phases().enter("inner").phase;
  });
  const std::vector<Phases::Span> spans = phases().since(before).all;
  CHECK(spans.size() == 2 && spans[0].phase == inner && spans[1].phase == outer);
  CHECK(spans[1].begin <= spans[0].begin && spans[0].begin <= spans[0].end);
  CHECK(spans[0].end <= spans[1].end && spans[1].end <= now_ticks());
}

TEST(threads_end_within_phases_that_others_leave) {
  init_thread_slots();
  for (int round = 0; round < 200; ++round) {
    std::atomic<uint64_t> entry{0};
    std::thread ends([&] { entry = phases().enter("dead").entry; });
    while (entry == 0) std::this_thread::yield();
    phases().leave(entry);
    ends.join();
    CHECK(current().empty());
  }
}

TEST(a_phase_without_room_for_its_name_is_none) {
  CHECK(phases().enter(std::string(2 << 20, 'x')).entry == 0);
  CHECK(phases().since(0).names_dropped == 1);
  phases().leave(0);
  CHECK(current().empty());
}

TEST(the_bytes_of_all_names_are_bounded) {
  in_a_child([] {  // or later tests would have no names left
    int placed = 0;
    for (int i = 1000; i < 3000; ++i) {
      const uint64_t entry = phases().enter(std::string(1000, 'x') + std::to_string(i)).entry;
      placed += entry != 0;
      phases().leave(entry);
    }
    CHECK(1000 <= placed && placed <= 1048);  // of 1 MiB
  });
}

TEST(nestings_run_out_of_numbers_first_and_no_number_is_given_twice) {
  in_a_child([] {
    const uint64_t dropped_before = phases().since(0).names_dropped;
    const Phases::Entered outer = phases().enter("the outer one");
    uint16_t last = outer.phase;
    uint32_t nested = 0, alone = 0, none = 0;
    for (int i = 0; i < 70'000; ++i) {
      const Phases::Entered inner = phases().enter(std::to_string(i));
      if (inner.entry == 0) {
        ++none;
        continue;
      }
      CHECK(inner.phase > last && current() == std::to_string(i) && none == 0);
      last = inner.phase;
      const bool is_nested = phases().parent(last) == outer.phase;
      CHECK(is_nested ? alone == 0 : phases().parent(last) == 0);
      ++(is_nested ? nested : alone);
      phases().leave(inner.entry);
    }
    CHECK(last == UINT16_MAX && nested > 60'000 && alone > 4'000 && none > 4'000);
    CHECK(phases().since(0).names_dropped - dropped_before >= alone + none);
    // Nestings that have a number keep it.
    CHECK(phases().enter("0").phase == outer.phase + 1);
  });
}

TEST(phases_that_overlap_or_recur_use_up_no_numbers) {
  const Phases::Entered before = phases().enter("before");
  phases().leave(before.entry);
  uint64_t one = phases().enter("one").entry;
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t other = phases().enter("other").entry;
    phases().leave(one);
    one = phases().enter("one").entry;
    phases().leave(other);
  }
  phases().leave(one);
  const Phases::Entered outermost = phases().enter("itself");
  std::vector<uint64_t> entries = {outermost.entry};
  for (int i = 0; i < 100; ++i) {
    const Phases::Entered again = phases().enter("itself");
    CHECK(again.phase == outermost.phase);
    entries.push_back(again.entry);
  }
  for (const uint64_t entry : entries) phases().leave(entry);
  const Phases::Entered after = phases().enter("after");
  phases().leave(after.entry);
  CHECK(outermost.phase == before.phase + 3 && after.phase == before.phase + 4);
}

TEST(a_number_stands_for_a_path) {
  const Phases::Entered outer = phases().enter("rollout");
  const Phases::Entered inner = phases().enter("forward");
  phases().leave(inner.entry);
  phases().leave(outer.entry);
  const Phases::Entered alone = phases().enter("forward");
  // The same name on another path is another phase.
  CHECK(phases().name(inner.phase) == "forward" && phases().name(alone.phase) == "forward");
  CHECK(inner.phase != alone.phase);
  CHECK(phases().parent(inner.phase) == outer.phase && phases().parent(alone.phase) == 0);
  CHECK(phases().is_within(inner.phase, outer.phase));
  CHECK(phases().is_within(outer.phase, outer.phase));
  CHECK(!phases().is_within(outer.phase, inner.phase) && !phases().is_within(0, outer.phase));
  phases().leave(alone.entry);
  // On the same path it is the same phase.
  const uint64_t again = phases().enter("rollout").entry;
  const Phases::Entered same = phases().enter("forward");
  CHECK(same.phase == inner.phase);
  phases().leave(same.entry);
  phases().leave(again);
}

TEST(spans_tell_when_phases_were_entered_and_left) {
  const int64_t before = now_ticks();
  const Phases::Entered outer = phases().enter("outer");
  const Phases::Entered inner = phases().enter("inner");
  phases().leave(inner.entry);
  const int64_t between = now_ticks();
  const Phases::Spans all = phases().since(before);
  CHECK(all.complete && all.all.size() == 2);
  const Phases::Span left = all.all[0], open = all.all[1];
  CHECK(left.phase == inner.phase && open.phase == outer.phase && open.end == Phases::kOpen);
  CHECK(before <= open.begin && open.begin <= left.begin && left.begin <= left.end);
  CHECK(left.end <= between);
  // Phases that were over before are not reported.
  CHECK(phases().since(between).all.size() == 1);
  phases().leave(outer.entry);
  CHECK(phases().since(now_ticks()).all.empty());
}

TEST(spans_are_bounded_and_the_loss_is_reported) {
  const int64_t begin = now_ticks();
  int64_t early = 0;
  for (int i = 0; i < 70'000; ++i) {
    phases().leave(phases().enter("often").entry);
    if (i == 10'000) early = now_ticks();
  }
  const Phases::Spans all = phases().since(begin);
  CHECK(all.all.size() == 65'536 && !all.complete);
  CHECK(phases().since(early).complete);
}

TEST(a_forked_child_continues_with_its_threads_phases) {
  const uint64_t left = phases().enter("left").entry;
  phases().leave(left);
  const Phases::Entered outer = phases().enter("outer");
  in_a_child([&] {
    CHECK(current() == "outer" && phases().since(0).all.size() == 1);
    const Phases::Entered inner = phases().enter("inner");
    CHECK(phases().parent(inner.phase) == outer.phase);
    phases().leave(inner.entry);
    // The child has room for as many spans as a process that was not forked.
    for (int i = 1; i < 65'536; ++i) phases().leave(phases().enter("often").entry);
    const Phases::Spans spans = phases().since(1);
    CHECK(spans.complete && spans.all.size() == 65'536 + 1);
  });
  phases().leave(outer.entry);
}

TEST(a_thread_that_has_not_recorded_forks) {
  // GIVEN a phase of this thread, and another thread that has no slot yet
  const uint64_t entry = phases().enter("forward").entry;
  // WHEN that thread forks, THEN the child, which lacks this thread, is in no phase
  on_another_thread([] {
    in_a_child([] { CHECK(current().empty() && phases().since(0).all.empty()); });
  });
  phases().leave(entry);
}

// Sanitizers do not support threads in a forked child; the address sanitizer's allocator may stay
// locked in it.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(forks_while_phases_of_other_threads_end) {
  // GIVEN threads that enter and leave phases, and end within them
  const Phases::Entered outer = phases().enter("outer");
  std::deque<Repeated> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([] {
      const uint64_t others = phases().enter("others").entry;
      phases().leave(phases().enter("often").entry);
      on_another_thread([] { phases().enter("ended"); });
      phases().since(0);
      phases().leave(others);
    });
  }
  // WHEN children are forked at the same time, THEN each is only in the phase of the forking thread
  for (int i = 0; i < 200; ++i) {
    in_a_child([&] {
      CHECK(current() == "outer" && phases().since(0).all.size() == 1);
      const Phases::Entered inner = phases().enter("inner");
      CHECK(phases().parent(inner.phase) == outer.phase);
      phases().leave(inner.entry);
      phases().leave(outer.entry);
      CHECK(current().empty());
    });
  }
  threads.clear();
  phases().leave(outer.entry);
}
#endif
