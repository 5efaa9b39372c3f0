// Numbers for the places in memory whose gradients autograd accumulates.
//
// 1. number_of() runs in hooks, on any thread, for allocations of AccumulateGrad alone. It takes a
//    spin lock for tens of nanoseconds.
// 2. A place is the address where a parameter's elements begin, and its device. Numbers are given out
//    from 1 on and keep their meaning until the process forks. Which parameter is or was at a place
//    is for the writer of a snapshot to decide (snapshot/parameter_names.h).
// 3. Bounded: kMost places, 20 bytes each, committed as they fill. Later ones get 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "support/interner.h"
#include "support/mix.h"
#include "support/spin_lock.h"

namespace pytracer {

class ParameterNumbers {
 public:
  static constexpr uint32_t kMost = 1u << 16;
  struct Place {
    uint64_t hash() const noexcept { return mix(address); }
    uint64_t address;
    int32_t device;
    uint32_t next;
  };

  // Not in a hook. Once made, the instance is never destroyed, as the recorder. Throws Error (no
  // address space) or std::bad_alloc.
  static void make() {
    static ParameterNumbers* const made = new ParameterNumbers;
    instance_.store(made, std::memory_order_release);
  }
  static ParameterNumbers* instance() noexcept {  // null before make()
    return instance_.load(std::memory_order_acquire);
  }

  uint32_t number_of(uint64_t address, int32_t device) noexcept {
    std::lock_guard lock(lock_);
    const uint32_t known = places_.find(mix(address), [&](uint32_t number) {
      return places_[number].address == address && places_[number].device == device;
    });
    return known != 0 || places_.is_full() ? known : places_.add({address, device, 0});
  }
  // For a number that was given out before the view that is being written.
  const Place& place(uint32_t number) const noexcept { return places_[number]; }
  uint32_t count() const noexcept {
    std::lock_guard lock(lock_);
    return places_.count();
  }

  void reset_after_fork() noexcept {  // allocates nothing
    places_.clear();
    lock_.unlock();  // another thread may have been in number_of()
  }

 private:
  ParameterNumbers() = default;
  static inline std::atomic<ParameterNumbers*> instance_{nullptr};
  Interner<Place> places_{kMost};
  mutable SpinLock lock_;  // guards the above
};

}  // namespace pytracer
