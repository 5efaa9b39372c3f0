#include "record/clock.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace pytracer {

namespace {

int64_t read_clock(clockid_t clock) noexcept {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

#if defined(__x86_64__)
// Whether the counter runs at a constant rate.
bool tsc_is_usable() noexcept {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}
// The kernel does not offer the TSC as a clock once it has seen that those of two processors differ.
// Where the file can't be read, nothing is known against it.
bool kernel_trusts_tsc() noexcept {
  const int file = open("/sys/devices/system/clocksource/clocksource0/available_clocksource",
                        O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  char names[256];
  const ssize_t size = read(file, names, sizeof(names));
  close(file);
  return size <= 0 || std::string_view(names, static_cast<size_t>(size)).find("tsc") !=
                          std::string_view::npos;
}
const bool g_use_tsc = tsc_is_usable() && kernel_trusts_tsc();
#endif

WallClock::Pair take_pair(WallClock::Now now) {
  // Of eight readings, the best one has the shortest distance between the two ticks around it.
  WallClock::Pair best{};
  int64_t shortest = INT64_MAX;
  for (int i = 0; i < 8; ++i) {
    const int64_t before = now();
    const int64_t wall = read_clock(CLOCK_REALTIME);
    const int64_t distance = now() - before;
    if (distance < shortest) {
      shortest = distance;
      best = {before + distance / 2, wall};
    }
  }
  return best;
}

}  // namespace

int64_t now_ticks() noexcept {
#if defined(__x86_64__)
  if (g_use_tsc) return static_cast<int64_t>(__rdtsc());
#elif defined(__aarch64__)
  int64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
  return read_clock(CLOCK_MONOTONIC);
}

WallClock::WallClock(Now now) noexcept : now_(now), first_(take_pair(now)) {}

std::shared_ptr<const WallClock::Pairs> WallClock::calibrate() {
  if (others_.size() + 1 >= kMaxPairs) {
    Pairs thinned;
    for (size_t i = 1; i < others_.size(); i += 2) thinned.push_back(others_[i]);
    others_ = std::move(thinned);
  }
  others_.push_back(take_pair(now_));
  const auto all = std::make_shared<Pairs>();
  all->reserve(1 + others_.size());
  all->push_back(first_);
  all->insert(all->end(), others_.begin(), others_.end());
  return all;
}

WallClock::Pair WallClock::pair() const noexcept { return take_pair(now_); }

int64_t WallClock::to_wall_ns(const Pairs& pairs, int64_t ticks) noexcept {
  auto after = std::upper_bound(pairs.begin() + 1, pairs.end() - 1, ticks,
                                [](int64_t value, const Pair& pair) { return value < pair.ticks; });
  const Pair& a = *(after - 1);
  const Pair& b = *after;
  if (b.ticks == a.ticks) return a.wall_ns;
  const double rate =
      static_cast<double>(b.wall_ns - a.wall_ns) / static_cast<double>(b.ticks - a.ticks);
  return a.wall_ns + std::llround(static_cast<double>(ticks - a.ticks) * rate);
}

}  // namespace pytracer
