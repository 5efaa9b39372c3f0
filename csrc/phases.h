// The phases that a program says it is in: forward, rollout, ...
//
// 1. A thread's events carry its own innermost phase. Those of a thread that is in none carry the
//    process's: the one that was entered last, on any thread, and not left yet. So autograd's
//    threads carry the phase that started them.
// 2. Phases may be left in any order, on any thread. Those of a thread that ends are over.
// 3. A phase's number stands for its name and for those of the phases that it is nested in on its
//    thread; it keeps its meaning for the life of the process. A phase within itself is that phase.
//    Bounded: 65,535 numbers, 1 MiB of names. A nesting that finds no place is its name alone, a
//    name that finds none is no phase; both are counted.
// 4. When phases were entered and left is kept of those that have not been left yet and of the
//    65,536 that were left last.
// 5. In a forked child the phases of the thread that forked go on; those of others are over, and
//    what was over is forgotten.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thread_slot.h"

namespace pytracer {

class Phases {
 public:
  static Phases& instance() noexcept;  // leaked, as the recorder

  struct Entered {
    uint64_t entry;  // for leave(); 0: none was entered
    uint16_t phase;
  };
  // The calling thread's. Throws std::bad_alloc.
  Entered enter(std::string_view name);
  void leave(uint64_t entry) noexcept;  // any thread
  bool is_entered(uint64_t entry) const noexcept;  // and not left

  // In a hook, without a lock.
  uint16_t of(const ThreadSlot& slot) const noexcept {
    const uint16_t own = slot.phase.load(std::memory_order_relaxed);
    return own != 0 ? own : of_process_.load(std::memory_order_relaxed);
  }

  // Of a number from an event; any thread, not in a hook. What they return lives as long as the
  // process.
  std::string_view name(uint16_t phase) const;
  uint16_t parent(uint16_t phase) const;  // 0: it is in none
  bool is_within(uint16_t phase, uint16_t outer) const;  // or is it

  struct Span {
    int64_t begin, end;  // now_ticks(); not left yet: kOpen
    uint16_t phase;
  };
  static constexpr int64_t kOpen = INT64_MAX;
  struct Spans {
    std::vector<Span> all;  // those not over before the time asked for, in no order
    bool complete = true;   // none of them was forgotten
    uint64_t names_dropped = 0;
  };
  Spans since(int64_t ticks) const;  // any thread; throws std::bad_alloc

 private:
  struct Entry {
    uint64_t number;
    ThreadSlot* slot;
    int64_t begin;
    uint16_t phase;
  };
  struct Node {
    uint16_t parent;
    std::string name;
  };
  static constexpr size_t kMaxNumbers = UINT16_MAX, kMaxNested = kMaxNumbers - 4096;
  static constexpr size_t kMaxNameBytes = 1 << 20, kMaxSpans = 1 << 16;

  Phases();
  void forget(ThreadSlot& slot) noexcept;  // its thread has ended
  // Under mutex_, as all below.
  uint16_t number_of(uint16_t parent, std::string_view name);
  uint16_t add_number(uint16_t parent, std::string_view name);
  void keep(const Entry& entry, int64_t end) noexcept;
  void publish(ThreadSlot& slot) noexcept;
  void reset_after_fork() noexcept;

  mutable std::mutex mutex_;
  std::vector<Entry> entered_;  // and not left, in that order
  uint64_t entries_ = 0;
  std::deque<Node> nodes_{{0, ""}};  // by number
  std::map<std::pair<uint16_t, std::string_view>, uint16_t> numbers_;
  size_t name_bytes_ = 0;
  uint64_t names_dropped_ = 0;
  std::vector<Span> left_;     // a ring of kMaxSpans
  uint64_t left_count_ = 0;
  int64_t forgotten_end_ = 0;  // the latest end among those overwritten
  std::atomic<uint16_t> of_process_{0};  // read without it
};

}  // namespace pytracer
