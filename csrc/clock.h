// The recorder's clock: a cheap counter on the hot path, wall time at export.
//
// 1. now_ticks() reads the processor's counter (TSC, CNTVCT) where it runs at a constant rate,
//    else CLOCK_MONOTONIC. A hook whose allocator stamps its events has a clock of its own.
// 2. Pairs (ticks, wall time) are taken at every snapshot. An event's wall time is interpolated
//    between the pair before it and the pair after it, so it is the same in every snapshot that
//    holds it, whatever was done to the system's clock in between; to some nanoseconds, once 4,096
//    snapshots were taken and every second old pair goes.
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

  // Of a clock that `now` reads.
  explicit WallClock(Now now);
  // Takes a pair now and returns all pairs, oldest first (two or more). Any thread that holds the
  // recorder's control lock.
  std::shared_ptr<const Pairs> calibrate();
  static int64_t to_wall_ns(const Pairs& pairs, int64_t ticks) noexcept;

 private:
  static constexpr size_t kMaxPairs = 4096;  // 64 KiB
  const Now now_;
  Pairs pairs_;
};

}  // namespace pytracer
