// The call stacks of all devices, each stored once, until the last session is gone.
//
// 1. The stacks are in a generation (call_tree.h). When it is nearly full, a new one is published. A walk
//    then finds and adds stacks in the new one alone. The stacks that live tables and rings have are
//    copied into it piece by piece (StackRenewal), and the old one goes. Until then there is no third
//    one.
// 2. So the table's memory is bounded by max_bytes: two generations of half of it each. Beyond that, a
//    session that has stopped, and the events that Python has, may keep a generation that the table has no
//    more: stacks' numbers are unique.
// 3. A walk with a stack that has no room gets 0 and is counted.
// 4. find_or_intern() is lock-free for stacks that are known. Otherwise it takes a mutex, which is held
//    for microseconds: under it nothing needs the GIL, waits, or touches much memory.
// 5. In a box, look_after() makes the next generation before it is needed, and destroys the old one, on a
//    thread of its own: a file grows and shrinks with them. A hook only takes and leaves them. If the next one
//    is not there yet, the table goes on with what it has. Without a box, hooks make and destroy mappings.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "record/call_tree.h"
#include "record/device_log.h"

namespace pytracer {

class StackTable {
 public:
  using Generations = std::vector<std::shared_ptr<const CallTree>>;
  struct Stats {
    uint64_t stacks, frames, codes, bytes, max_bytes, truncated, dropped, generations;
  };

  explicit StackTable(uint64_t max_bytes, std::shared_ptr<Box> box = nullptr);

  // What another process had; `old` may be null. Nothing is added.
  StackTable(std::shared_ptr<CallTree> current, std::shared_ptr<CallTree> old);

  // In a hook, any thread. The seed of walks, which changes whenever a node of a memo may mean other
  // frames; each table has its own ones. And the generation, which is 0 for none.
  uint64_t seed() const noexcept { return seed_.load(std::memory_order_acquire); }
  uint64_t era() const noexcept { return era_.load(std::memory_order_acquire); }
  // In a hook. Gives the walk its stack; 0: there is no room. kUnknownStack: the seed has changed since the
  // walk, which has to be made again.
  uint32_t find_or_intern(WalkMemo& walk) noexcept {
    return newest()->find(walk) ? walk.stack() : intern(walk);
  }
  // In a hook. The stack with what is known of the node that runs; the plain stack when there is no room.
  // kUnknownStack: a generation has begun since the stacks were found. The walk has to be made again, and
  // the forward stack to be looked for again.
  uint32_t intern_backward(const Backward& backward) noexcept;
  // In a hook, for a stack of the calling thread, as in CallTree.
  bool is_engine(uint32_t stack) const noexcept {
    const CallTree* const tree = newest();
    return tree->has(stack) && tree->is_engine(stack);
  }

  // In a hook; one thread at a time renews (StackRenewal).
  bool wants_generation() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  bool begin_generation() noexcept;  // false: there is no memory for it, or it is not made yet
  // The stack in the newest generation. Each hook that began before begin_generation() has ended.
  uint32_t renewed(uint32_t stack) noexcept;
  enum class End { done, pinned, again /* a ring was replaced: its stacks may not be renewed */ };
  End end_generation() noexcept;

  // Any thread, not in a hook, one at a time: contract 5.
  void look_after() noexcept;

  // Any thread, not in a hook. As long as the result or a copy of it exists, no generation goes.
  static std::shared_ptr<StackTable> pinned(std::shared_ptr<StackTable> table);
  // While pinned, after a ring was replaced by one that was copied from it.
  void note_replaced_ring();
  // The generations that live tables and rings refer to. While pinned, for stacks that were read before.
  Generations generations() const;
  // The generation of a stack, as long as somebody has it; null: nobody has.
  std::shared_ptr<const CallTree> generation_of(uint32_t stack) const;

  // With the GIL. No frame runs the code object.
  void code_destroyed(const void* pointer) noexcept;

  Stats stats() const;  // any thread

 private:
  // Stacks have smaller numbers, because links have some bits less.
  static constexpr uint32_t kMostStacks = 1u << 29;

  CallTree* newest() const noexcept { return newest_.load(std::memory_order_acquire); }
  __attribute__((noinline)) uint32_t intern(WalkMemo& walk) noexcept;
  // Under mutex_.
  void note_added(bool is_dropped) noexcept;
  bool has_keeper() const noexcept { return box_ && box_->has_keeper(); }
  void make_spare() noexcept;  // one thread at a time, without mutex_
  static uint64_t new_seed() noexcept;  // any thread

  mutable std::mutex mutex_;  // guards all below, except where a comment says otherwise
  const uint64_t max_bytes_;
  const std::shared_ptr<Box> box_;
  std::shared_ptr<CallTree> current_, old_;  // old_: null once its stacks are copied
  std::shared_ptr<CallTree> spare_, gone_;   // the next one, and one that is to be destroyed
  std::vector<std::weak_ptr<CallTree>> known_;  // those that somebody may have
  std::atomic<CallTree*> newest_;               // current_
  std::atomic<uint64_t> seed_{new_seed()};
  std::atomic<uint64_t> era_{seed_.load()};
  std::atomic<bool> wanted_{false};  // a generation is wanted, or has begun
  std::atomic<uint32_t> pins_{0};    // grows under the mutex alone
  bool ring_was_replaced_ = false;
  uint32_t first_added_ = 0;    // the last number when all was copied
  std::atomic<uint64_t> looked_at_{0};  // by renewed(), for this generation; one writer
  uint64_t dropped_since_ = 0;
  uint64_t dropped_ = 0, generations_ = 1;
};

// Finds the generations of stacks, for one reader. `table` is pinned.
class StackReader {
 public:
  explicit StackReader(std::shared_ptr<StackTable> table) : table_(std::move(table)) {}
  // Of a stack that somebody has, not 0.
  const CallTree& of(uint32_t stack) {
    if (!last_ || !last_->has(stack)) last_ = table_->generation_of(stack);
    return *last_;
  }

 private:
  std::shared_ptr<StackTable> table_;
  std::shared_ptr<const CallTree> last_;
};

// Brings the stacks that are in use into a new generation of the stack table, so that the old one can go.
//
// 1. step() runs in hooks that had to intern a stack, while the table wants a generation. It does
//    the next piece, some thousand stacks, and never waits: if another thread is in step(), or something
//    is not finished, it returns.
// 2. First a new generation is published: from then on hooks that begin have stacks of the new one alone.
//    Then the hooks end that began before and may have old stacks in hand. Then the stacks of the live
//    tables and of the rings are renewed. A free takes a stack from a live table to a ring, never back.
// 3. So a stack of the old generation is in no ring, no live table and no hook. Captures and
//    views are copies of rings and live tables. Their owner pins the table, which then keeps the old
//    generation.
class StackRenewal {
 public:
  // In a hook, without any lock. `logs` are the published ones; null entries are left out.
  void step(StackTable& stacks, const std::atomic<DeviceLog*>* logs, int log_count) noexcept;
  // For the next stack table. While no hook runs that has the old one.
  void reset() noexcept;

 private:
  bool renew(StackTable& stacks, const std::atomic<DeviceLog*>* logs, int log_count) noexcept;

  std::atomic<bool> busy_{false};  // guards all below
  enum class Stage { idle, waiting_for_hooks, renewing, ending } stage_ = Stage::idle;
  int log_ = 0;  // the log whose stacks are being renewed
  DeviceLog::StackScan scan_;
};

}  // namespace pytracer
