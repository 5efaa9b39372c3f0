#include "record/thread_slot.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "check.h"

using namespace pytracer;

TEST(a_wait_for_hooks_ends_although_the_thread_is_always_in_a_hook) {
  init_thread_slots();
  std::atomic<uint64_t> begun{0};
  std::atomic<bool> stop{false};
  std::thread recording([&] {
    std::optional<HookScope> scope;
    while (!stop) {
      scope.emplace(*thread_slot());  // one scope ends where the next begins
      ++begun;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  while (begun == 0) std::this_thread::yield();
  uint64_t fewest = UINT64_MAX;  // the scopes that began during a wait, if nothing else delayed it
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = begun;
    wait_for_hooks();
    fewest = std::min(fewest, begun - before);
  }
  stop = true;
  recording.join();
  CHECK(fewest <= 2);
}

TEST(events_are_found_while_idle_slots_are_unlisted) {
  init_thread_slots();
  const bool worked = detail::membarrier_works;
  for (const bool works : {worked, false}) {
    detail::membarrier_works = works;
    // GIVEN threads that queue events, with pauses
    constexpr uint64_t kThreads = 3;
    const uint64_t events = static_cast<uint64_t>(amount(5'000, 20'000));
    std::atomic<uint64_t> queued[kThreads] = {}, written[kThreads] = {}, ready{0};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        ThreadSlot& slot = *thread_slot();
        for (++ready; ready < kThreads;) std::this_thread::yield();  // each has a slot of its own
        for (uint64_t i = 1; i <= events; ++i) {
          while (i - written[t] > EventQueue::kCapacity) std::this_thread::yield();
          {
            const HookScope scope(slot);
            slot.queue.push({t, 0, 0, 0, 0, 0});
            if (!slot.is_listed.load(std::memory_order_relaxed)) list_slot(slot);
          }
          queued[t] = i;
          if (i % 64 == 0) std::this_thread::yield();
        }
      });
    }
    // WHEN another thread takes idle slots off the list all the time
    uint64_t all = 0;
    while (all < kThreads * events) {
      uint64_t before[kThreads];
      for (uint64_t t = 0; t < kThreads; ++t) before[t] = queued[t];
      for (ThreadSlot* slot = listed_slots(); slot != nullptr; slot = slot->next_listed) {
        if (!slot->queue.begin_pass()) continue;
        uint64_t found[kThreads] = {};
        for (; const QueuedEvent* event = slot->queue.next(INT64_MAX); slot->queue.advance()) {
          ++found[event->address];
        }
        slot->queue.end_pass();
        for (uint64_t t = 0; t < kThreads; ++t) {
          written[t] += found[t];
          all += found[t];
        }
      }
      // THEN it finds each event whose hook has returned
      for (uint64_t t = 0; t < kThreads; ++t) CHECK(written[t] >= before[t]);
      unlist_idle_slots();
    }
    for (std::thread& thread : threads) thread.join();
    listed_slots();  // takes slots that were listed although their last event had been found
    unlist_idle_slots();
    CHECK(listed_slots() == nullptr);
  }
  detail::membarrier_works = worked;
}

TEST(hooks_are_waited_for_without_membarrier) {
  init_thread_slots();
  const bool worked = detail::membarrier_works;
  detail::membarrier_works = false;
  constexpr uint32_t kGone = 0;
  std::atomic<uint32_t> value{1};
  std::atomic<std::atomic<uint32_t>*> published{nullptr};
  std::atomic<bool> stop{false};
  // GIVEN a thread that reads the published pointer, each time in a scope
  std::atomic<bool> began{false};
  std::thread looking([&] {
    ThreadSlot& slot = *thread_slot();
    for (began = true; !stop;) {
      const HookScope scope(slot);
      const std::atomic<uint32_t>* found = published.load(std::memory_order_acquire);
      CHECK(found == nullptr || found->load(std::memory_order_relaxed) != kGone);
    }
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
  stop = true;
  looking.join();
  detail::membarrier_works = worked;
}
