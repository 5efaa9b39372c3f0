#include "thread_slot.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "check.h"

using namespace pytracer;

TEST(a_wait_for_hooks_ends_although_the_thread_is_always_in_one) {
  init_thread_slots();
  std::atomic<uint64_t> begun{0};
  std::atomic<bool> stop{false};
  std::thread recording([&] {
    std::optional<HookScope> scope;
    while (!stop) {
      scope.emplace(*thread_slot());  // one ends where the next begins
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  while (begun == 0) std::this_thread::yield();
  uint64_t fewest = UINT64_MAX;  // scopes that began during a wait, when nothing else held it up
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = begun;
    wait_for_hooks();
    fewest = std::min(fewest, begun - before);
  }
  stop = true;
  recording.join();
  CHECK(fewest <= 2);
}
