// The phases that a program says it is in: forward, rollout, ...
//
// 1. A thread's events carry its own innermost phase. Those of a thread that is in none carry the
//    process's: the one that was entered last, on any thread, and not left yet. So autograd's
//    threads carry the phase that started them.
// 2. Phases may be left in any order, on any thread. Those of a thread that ends are over.
// 3. A name keeps its number for the life of the process. Bounded, see InternTable: a phase whose
//    name finds no place is none.
// 4. In a forked child the phases of the thread that forked go on; those of others are over.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "intern_table.h"
#include "thread_slot.h"

namespace pytracer {

class Phases {
 public:
  static Phases& instance() noexcept;  // leaked, as the recorder

  // The calling thread's. Returns what leave() takes; 0: none was entered. Throws std::bad_alloc.
  uint64_t enter(std::string_view name);
  void leave(uint64_t entry) noexcept;  // any thread

  // In a hook, without a lock.
  uint16_t of(const ThreadSlot& slot) const noexcept {
    const uint16_t own = slot.phase.load(std::memory_order_relaxed);
    return own != 0 ? own : of_process_.load(std::memory_order_relaxed);
  }
  // Of a number from an event. Any thread, without a lock.
  std::string_view name(uint16_t phase) const noexcept { return names_.at(phase); }

 private:
  struct Entry {
    uint64_t number;
    ThreadSlot* slot;
    uint16_t phase;
  };
  Phases();
  void forget(ThreadSlot& slot) noexcept;  // its thread has ended
  void publish(ThreadSlot& slot) noexcept;  // under mutex_

  std::mutex mutex_;  // all below, but for the names' being read
  std::vector<Entry> entered_;  // and not left, in that order
  uint64_t entries_ = 0;
  InternTable names_{1 << 20};
  std::atomic<uint16_t> of_process_{0};
};

}  // namespace pytracer
