// Threads that allocate and free without Python, for the tests; ctypes calls the C functions.
//
// A churn is one thread on one device. It holds a few blocks of random sizes. A pair is one free
// and one allocation in its place. The thread pauses when its allowance of pairs is used up, and
// continues when the allowance is raised.
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

uint64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

struct Sample {
  uint32_t cpu_ns, wall_ns;
};

struct Churn {
  c10::Device device{c10::kCPU};
  uint64_t least, most;  // bytes of a block
  size_t held;           // blocks
  std::vector<Sample> samples;
  size_t sample_count = 0;
  std::atomic<uint64_t> allowance{0};
  std::atomic<uint64_t> pairs{0};
  std::atomic<bool> ended{false};
  std::atomic<bool> failed{false};
  std::thread thread;

  void run() noexcept {
    try {
      const c10::DeviceGuard guard(device);
      c10::Allocator* allocator = c10::GetAllocator(device.type());
      std::mt19937_64 random(static_cast<uint64_t>(device.index()) + least);
      std::vector<c10::DataPtr> blocks(held);
      while (true) {
        while (pairs.load() == allowance.load() && !ended.load()) usleep(20);
        if (ended.load()) break;
        pair(*allocator, random, blocks);
        pairs.store(pairs.load(std::memory_order_relaxed) + 1);
      }
    } catch (...) {
      failed.store(true);
    }
  }

  void pair(c10::Allocator& allocator, std::mt19937_64& random,
            std::vector<c10::DataPtr>& blocks) {
    // Every power of two is about equally likely, so small sizes are frequent.
    const uint64_t range = most - least + 1;
    const uint64_t size = least + (random() % range >> random() % 12);
    c10::DataPtr& place = blocks[random() % held];
    const bool measured = sample_count < samples.size();
    const uint64_t wall = measured ? nanoseconds(CLOCK_MONOTONIC) : 0;
    const uint64_t cpu = measured ? nanoseconds(CLOCK_THREAD_CPUTIME_ID) : 0;
    place.clear();
    place = allocator.allocate(size);
    if (!measured) return;
    const uint64_t cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
    const uint64_t wall_ns = nanoseconds(CLOCK_MONOTONIC) - wall;
    samples[sample_count++] = {static_cast<uint32_t>(std::min<uint64_t>(cpu_ns, UINT32_MAX)),
                               static_cast<uint32_t>(std::min<uint64_t>(wall_ns, UINT32_MAX))};
  }
};

c10::Device device_named(const char* name) { return c10::Device(std::string(name)); }

}  // namespace

extern "C" {

// `device` is a name such as "cuda:1". The first `samples` pairs are timed.
Churn* churn_start(const char* device, uint64_t least, uint64_t most, uint64_t held,
                   uint64_t samples) {
  auto* churn = new Churn;
  churn->device = device_named(device);
  churn->least = least;
  churn->most = most;
  churn->held = held;
  churn->samples.resize(samples);
  churn->thread = std::thread(&Churn::run, churn);
  return churn;
}

void churn_allow(Churn* churn, uint64_t pairs) { churn->allowance += pairs; }

// Returns the number of pairs, or UINT64_MAX if an exception ended the thread.
uint64_t churn_pairs(const Churn* churn) { return churn->failed ? UINT64_MAX : churn->pairs.load(); }

// Ends the thread and frees its blocks.
void churn_end(Churn* churn) {
  churn->ended = true;
  churn->thread.join();
}

// Copies the times of the timed pairs to `samples` and returns their number, after `churn_end`.
uint64_t churn_samples(const Churn* churn, Sample* samples) {
  std::copy_n(churn->samples.begin(), churn->sample_count, samples);
  return churn->sample_count;
}

void churn_delete(Churn* churn) { delete churn; }

struct GilHold {
  uint64_t began_ns, ended_ns;  // since the epoch
  uint64_t pairs, counted;      // progress of the churn and of the caller's counter
};

// Waits without taking or releasing the GIL, and counts the progress of the churn and of `counter`.
void wait_in_c(uint64_t microseconds, const Churn* churn, const volatile uint64_t* counter,
               GilHold* hold) {
  const uint64_t pairs = churn->pairs, counted = *counter;
  hold->began_ns = nanoseconds(CLOCK_REALTIME);
  const uint64_t end = nanoseconds(CLOCK_MONOTONIC) + microseconds * 1000;
  while (nanoseconds(CLOCK_MONOTONIC) < end) usleep(1000);
  hold->ended_ns = nanoseconds(CLOCK_REALTIME);
  hold->counted = *counter - counted;
  hold->pairs = churn->pairs - pairs;
}

// Allocates and frees a block on the calling thread.
void allocate_and_free(const char* device, uint64_t size) {
  const c10::DeviceGuard guard(device_named(device));
  c10::GetAllocator(guard.current_device().type())->allocate(size);
}

}  // extern "C"
