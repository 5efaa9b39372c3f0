// The processor time of the calling thread since the clock was made: on a busy machine, a search gets as
// far as on an idle one. A thread that hardly runs, as in a container with a quota or while memory is
// swapped, counts a fifth of the time that passes, because it has the GIL meanwhile.
#pragma once

#include <algorithm>
#include <ctime>

namespace pytracer {

class ThreadClock {
 public:
  double seconds() const noexcept {
    return std::max(now(CLOCK_THREAD_CPUTIME_ID) - begin_, (now(CLOCK_MONOTONIC) - wall_begin_) / kWallPart);
  }

 private:
  static constexpr double kWallPart = 5;

  static double now(clockid_t clock) noexcept {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double begin_ = now(CLOCK_THREAD_CPUTIME_ID);
  double wall_begin_ = now(CLOCK_MONOTONIC);
};

}  // namespace pytracer
