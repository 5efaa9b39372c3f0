// The phases that a program enters and leaves: forward, rollout, ...
//
// 1. A thread's events carry its innermost phase. The recorder decides which threads in no phase
//    inherit the process's phase: the one that was entered last, on any thread, and not left yet.
// 2. Phases may be left in any order, on any thread. When a thread ends, so do its phases.
// 3. A phase's number stands for its name and the names of the phases around it on its thread, for
//    the life of the process. A phase nested in itself keeps its number. Bounded: 65,535 numbers,
//    1 MiB of names. A nesting that finds no place is recorded by its name alone, a name that finds
//    none is not recorded; both are counted.
// 4. Times are kept for the phases that have not been left yet, and for the 65,536 that were left
//    last.
// 5. In a forked child the phases of the thread that forked continue, those of other threads have
//    ended, and phases that were left are forgotten. No lock is held across the fork.
// 6. Only enter() adds names, and the bindings call it with the GIL. So a fork with the GIL never
//    interrupts it, and a child of a fork without the GIL enters no phase.
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

#include "record/thread_slot.h"
#include "support/intern_table.h"

namespace pytracer {

class Phases {
 public:
  static Phases& instance() noexcept;  // never destroyed, as the recorder

  struct Entered {
    uint64_t entry;  // for leave(); 0: no phase was entered
    uint16_t phase;
  };
  // Enters a phase on the calling thread. Throws std::bad_alloc.
  Entered enter(std::string_view name);
  void leave(uint64_t entry) noexcept;  // any thread
  bool is_entered(uint64_t entry) noexcept;  // entered and not left

  // The phase of the process. In a hook, without a lock.
  static uint16_t process_phase() noexcept {
    return process_phase_.load(std::memory_order_relaxed);
  }

  // Any thread, not in a hook. The names live as long as the process.
  size_t numbers() const;  // the highest number; the lowest is 1
  std::string_view name(uint16_t phase) const;
  uint16_t parent(uint16_t phase) const;  // 0: the phase is outermost
  bool is_within(uint16_t phase, uint16_t outer) const;  // true for `outer` itself too

  struct Span {
    int64_t begin, end;  // now_ticks(); kOpen: not left yet
    uint16_t phase;
  };
  static constexpr int64_t kOpen = INT64_MAX;
  struct Spans {
    std::vector<Span> all;  // those that had not ended before the given time, in no order
    bool complete = true;   // no such span was forgotten
    uint64_t names_dropped = 0;
  };
  Spans since(int64_t ticks) const;  // any thread; throws std::bad_alloc
  // From now on the table has each phase: its number and its parent's, as two bytes each, and its name. Null: no
  // table.
  void note_in(InternTable* table) noexcept;
  // Gives the next number to a phase of another process. Throws std::bad_alloc.
  void add(uint16_t parent, std::string_view name);

 private:
  struct Entry {
    uint64_t number;
    ThreadSlot* slot;
    int64_t begin;
    uint16_t phase;
    std::atomic<Entry*> older;  // the next older entry
  };
  struct Node {
    uint16_t parent;
    std::string name;
  };
  static constexpr size_t kMaxNumbers = UINT16_MAX, kMaxNested = kMaxNumbers - 4096;
  static constexpr size_t kMaxNameBytes = 1 << 20, kMaxSpans = 1 << 16;

  Phases();
  void end_phases(ThreadSlot& slot) noexcept;  // the slot's thread has ended
  void reset_after_fork() noexcept;
  // Under mutex_, as all below.
  uint16_t find_or_add(uint16_t parent, std::string_view name);
  uint16_t add_number(uint16_t parent, std::string_view name);
  void note(size_t number) noexcept;
  void add_span(const Entry& entry, int64_t end) noexcept;
  std::atomic<Entry*>* find(uint64_t entry) noexcept;  // the link to it; null: it was left
  // Removes the entry that `link` points to; `link` then points to the next older one.
  static void remove(std::atomic<Entry*>& link) noexcept;
  void publish(ThreadSlot& slot) noexcept;

  mutable std::mutex mutex_;
  // Entered and not left, newest first. One store adds or removes an entry, so a fork at any time
  // finds the list intact.
  std::atomic<Entry*> newest_{nullptr};
  uint64_t entries_ = 0;
  std::deque<Node> nodes_{{0, ""}};  // by number
  std::map<std::pair<uint16_t, std::string_view>, uint16_t> numbers_;
  InternTable* noted_ = nullptr;
  size_t name_bytes_ = 0;
  uint64_t names_dropped_ = 0;
  std::vector<Span> left_;     // a ring of kMaxSpans
  uint64_t left_count_ = 0;
  int64_t forgotten_end_ = 0;  // the latest end of a span that was overwritten
  static inline std::atomic<uint16_t> process_phase_{0};  // read without mutex_
};

}  // namespace pytracer
