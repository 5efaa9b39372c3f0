#include "phases.h"

#include <atomic>
#include <string>
#include <thread>

#include "check.h"

using namespace pytracer;

namespace {

Phases& phases() { return Phases::instance(); }
std::string current() { return std::string(phases().name(phases().of(*thread_slot()))); }

template <class Work>
void on_another_thread(Work work) {
  std::thread(work).join();
}

}  // namespace

TEST(a_thread_is_in_its_own_innermost_phase) {
  CHECK(current().empty());
  const uint64_t outer = phases().enter("outer");
  const uint64_t inner = phases().enter("inner");
  CHECK(current() == "inner");
  phases().leave(inner);
  CHECK(current() == "outer");
  phases().leave(inner);  // twice does no harm
  CHECK(current() == "outer");
  phases().leave(outer);
  CHECK(current().empty());
}

TEST(phases_may_be_left_in_any_order_and_on_any_thread) {
  const uint64_t outer = phases().enter("outer");
  const uint64_t inner = phases().enter("inner");
  phases().leave(outer);
  CHECK(current() == "inner");
  on_another_thread([&] { phases().leave(inner); });
  CHECK(current().empty());
}

TEST(a_thread_in_no_phase_is_in_the_process_s) {
  const uint64_t first = phases().enter("first");
  on_another_thread([&] {
    CHECK(current() == "first");
    const uint64_t own = phases().enter("own");
    CHECK(current() == "own");
    on_another_thread([] { CHECK(current() == "own"); });  // the one entered last
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
    dead = phases().enter("dead");
  });
  // THEN the process is in none of its phases
  CHECK(current().empty());
  // AND neither is the next thread with its slot, before and after a phase of its own
  on_another_thread([&] {
    CHECK(thread_slot() == its_slot);
    CHECK(current().empty());
    const uint64_t own = phases().enter("own");
    phases().leave(dead);  // late: no harm
    CHECK(current() == "own");
    phases().leave(own);
    CHECK(current().empty());
  });
}

TEST(threads_end_within_phases_that_others_leave) {
  init_thread_slots();
  for (int round = 0; round < 200; ++round) {
    std::atomic<uint64_t> entry{0};
    std::thread ends([&] { entry = phases().enter("dead"); });
    while (entry == 0) std::this_thread::yield();
    phases().leave(entry);
    ends.join();
    CHECK(current().empty());
  }
}

TEST(a_phase_without_a_place_for_its_name_is_none) {
  CHECK(phases().enter(std::string(2 << 20, 'x')) == 0);
  phases().leave(0);
  CHECK(current().empty());
}
