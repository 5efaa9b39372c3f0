// A lock for short critical sections: tens of nanoseconds for an event, microseconds at most for
// rare work.
//
// 1. Without contention, locking costs one atomic exchange, and unlocking a plain store.
// 2. A waiter yields its time slice after a short spin, so a preempted holder gets to run. The spin leaves
//    the processor's core to the other thread on it (`pause`).
#pragma once

#include <sched.h>

#include <atomic>

namespace pytracer {

class SpinLock {
 public:
  void lock() noexcept {
    if (locked_.exchange(true, std::memory_order_acquire)) wait();
  }
  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  // Not inlined, as all rare code of a hook: inlined code would take registers.
  __attribute__((noinline, cold)) void wait() noexcept {
    do {
      for (int spin = 0; locked_.load(std::memory_order_relaxed); ++spin) {
        spin < kSpins ? pause() : static_cast<void>(sched_yield());
      }
    } while (locked_.exchange(true, std::memory_order_acquire));
  }

  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  static constexpr int kSpins = 64;
  std::atomic<bool> locked_{false};
};

}  // namespace pytracer
