// The C++ types of the autograd nodes that ran, and the parameters that they are for, by number.
//
// 1. number_of() runs in hooks, on any thread. It is lock-free for a type that is known; a new type
//    takes a spin lock for microseconds.
// 2. Numbers are given out from 1 on and keep their meaning for the life of the process. Bounded:
//    kMaxTypes types, and 64 KiB of names. A type that finds no place gets 0.
// 3. A name is copied: the library that defines the type may be unloaded.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "support/intern_table.h"
#include "support/mix.h"
#include "support/spin_lock.h"

namespace pytracer {

class NodeTypes {
 public:
  static constexpr uint32_t kMaxTypes = 1023;

  static NodeTypes& instance() noexcept;  // never destroyed, as the recorder

  // `mangled` is the static name of a C++ type.
  uint32_t number_of(const char* mangled) noexcept {
    const uint32_t place = place_of(mangled);
    for (uint32_t i = 0; i < kProbes; ++i) {
      const Place& probe = places_[(place + i) % kPlaces];
      const char* key = probe.key.load(std::memory_order_acquire);
      if (key == mangled) return probe.number;
      if (key == nullptr) break;
    }
    return add(mangled);
  }
  // What the forward call of such a node does with memory, if its result has elements.
  enum class Output : uint8_t {
    unknown,          // it may allocate nothing, as a view does, or may run other calls
    may_be_in_place,  // it allocates its result, unless the operator is called in place
    keeps_both,       // the same; a call in place makes a node more if two gradients are computed
    allocated         // it allocates at least its result, or makes another node in between
  };
  Output output(uint32_t number) const noexcept { return types_[number].output; }
  // The short name, such as LogSoftmaxBackward0; "" for 0. Throws std::bad_alloc.
  std::string name(uint32_t number) const;

  // From now on the table has each type: its number, as two bytes, and its mangled name. Null: no table.
  void note_in(InternTable* table) noexcept;
  void reset_after_fork() noexcept;  // another thread may have been in add()

 private:
  static constexpr uint32_t kPlaces = 4096, kProbes = 64, kNameBytes = 1 << 16;
  struct Place {
    std::atomic<const char*> key;
    uint32_t number;
  };
  struct Type {
    const char* mangled;
    Output output;
  };
  static uint32_t place_of(const char* mangled) noexcept {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(mangled) * 0x9e3779b97f4a7c15ull >> 52);
  }
  uint32_t add(const char* mangled) noexcept;
  void note(uint32_t number) noexcept;

  Place places_[kPlaces]{};
  Type types_[kMaxTypes + 1]{};
  SpinLock lock_;  // guards the next
  InternTable* noted_ = nullptr;
  uint32_t count_ = 0;
  uint32_t name_bytes_ = 0;
  char names_[kNameBytes];
};

// Numbers for the places in memory whose gradients autograd accumulates.
//
// 1. number_of() runs in hooks, on any thread, for allocations of AccumulateGrad alone. It takes a
//    spin lock for tens of nanoseconds.
// 2. A place is the address where a parameter's elements begin, and its device. Numbers are given out
//    from 1 on and keep their meaning until the process forks. Which parameter is or was at a place
//    is for the writer of a snapshot to decide (snapshot/parameter_names.h).
// 3. Bounded: kMost places, 20 bytes each, committed as they fill. Later ones get 0.
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
