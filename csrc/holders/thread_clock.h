// The processor time of the calling thread since the clock was made: on a busy machine, a search gets as
// far as on an idle one.
#pragma once

#include <ctime>

namespace pytracer {

class ThreadClock {
 public:
  double seconds() const noexcept { return now() - begin_; }

 private:
  static double now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double begin_ = now();
};

}  // namespace pytracer
