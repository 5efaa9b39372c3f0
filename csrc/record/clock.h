// The recorder's clock: a cheap counter on the hot path, wall time at export.
//
// 1. now_ticks() reads the processor's counter (TSC, CNTVCT) where it runs at a constant rate and the
//    kernel trusts it, which means that all processors' counters agree; else CLOCK_MONOTONIC. A hook
//    whose allocator stamps its events has a clock of its own.
// 2. Pairs (ticks, wall time) are taken at every snapshot. An event's wall time is interpolated
//    between the pair before it and the pair after it, so it is the same in every snapshot that
//    holds it, whatever was done to the system's clock in between. After 4,096 snapshots every
//    second old pair is dropped, which may shift it by some nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pytracer {

int64_t now_ticks() noexcept;  // any thread; the recorder's own clock

class WallClock {
 public:
  struct Pair {
    int64_t ticks;
    int64_t wall_ns;  // since the epoch
  };

  using Pairs = std::vector<Pair>;
  using Now = int64_t (*)();

  // Reads the clock `now` and takes the first pair. Allocates nothing, because forked children call
  // it.
  explicit WallClock(Now now) noexcept;
  // Takes a pair now and returns all pairs, oldest first (two or more). Any thread that holds the
  // registry's control lock.
  std::shared_ptr<const Pairs> calibrate();
  Pair pair() const noexcept;  // of now
  static int64_t to_wall_ns(const Pairs& pairs, int64_t ticks) noexcept;

 private:
  static constexpr size_t kMaxPairs = 4096;  // 64 KiB
  Now now_;
  Pair first_;
  Pairs others_;
};

}  // namespace pytracer
