// Ends the work on a file early: when a signal arrived, or when the work takes too much memory.
//
// 1. The work asks at least every kInterval small steps. A check that ends the work throws.
// 2. This class never ends the work. python/python_watch.h derives the class that asks Python.
// 3. One thread.
#pragma once

#include <cstdint>

namespace pytracer::reading {

class Watch {
 public:
  static constexpr uint64_t kInterval = 1024;

  virtual ~Watch() = default;
  virtual void check_signals() {}
  // `bytes` is all memory that the work holds.
  virtual void check_memory(uint64_t /*bytes*/) {}

  // Must be called in each step of a loop.
  void tick() {
    if (++ticks_ % kInterval == 0) check_signals();
  }

 private:
  uint64_t ticks_ = 0;
};

}  // namespace pytracer::reading
