#include "record/thread_slot.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "check.h"
#include "threads.h"

using namespace pytracer;

TEST(a_wait_for_hooks_ends_although_the_thread_is_always_in_a_hook) {
  init_thread_slots();
  std::atomic<uint64_t> begun{0};
  Repeated recording([&] {
    ThreadSlot& slot = *thread_slot();
    thread_local std::optional<HookScope> scope;
    scope.emplace(slot);  // one scope ends where the next begins
    ++begun;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (begun == 0) std::this_thread::yield();
  uint64_t fewest = UINT64_MAX;  // the scopes that began during a wait, if nothing else delayed it
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = begun;
    wait_for_hooks();
    fewest = std::min(fewest, begun - before);
  }
  recording.stop();
  CHECK(fewest <= 2);
}

TEST(hooks_are_waited_for_without_membarrier) {
  init_thread_slots();
  const bool worked = detail::membarrier_works;
  detail::membarrier_works = false;
  constexpr uint32_t kGone = 0;
  std::atomic<uint32_t> value{1};
  std::atomic<std::atomic<uint32_t>*> published{nullptr};
  // GIVEN a thread that reads the published pointer, each time in a scope
  std::atomic<bool> began{false};
  Repeated looking([&] {
    ThreadSlot& slot = *thread_slot();
    began = true;
    const HookScope scope(slot);
    const std::atomic<uint32_t>* found = published.load(std::memory_order_acquire);
    CHECK(found == nullptr || found->load(std::memory_order_relaxed) != kGone);
  });
  while (!began) std::this_thread::yield();
  for (uint32_t i = 1; i < 300'000; ++i) {
    // WHEN the pointer is withdrawn, and the scopes are waited for
    value.store(i, std::memory_order_relaxed);
    published.store(&value, std::memory_order_release);
    published.store(nullptr, std::memory_order_release);
    wait_for_hooks();
    // THEN the thread does not use it any more
    value.store(kGone, std::memory_order_relaxed);
  }
  looking.stop();
  detail::membarrier_works = worked;
}
