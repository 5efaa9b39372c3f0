// Which forward call made the autograd node that runs, as far as the thread's allocations tell.
//
// 1. An operator makes its node before it allocates. So a thread's first allocation after node n was
//    made is of the call that made node n, if that call allocates at all. Where that is not certain,
//    the stack is marked as not exact. So is the stack of a node without an allocation of its own:
//    it is that of an earlier node of the same thread, at most kNear nodes before.
//    docs/explanation/recorder.md explains the rules.
// 2. A thread numbers the nodes that it makes. Each such thread has a table with its last kNodes
//    nodes, which it alone writes. Any thread reads the table without a lock.
// 3. Bounded: tables for kTables threads, of 1 MiB each, committed as they fill. When all are taken,
//    a new thread gets the oldest table of a thread that has ended. If there is none, the nodes of
//    the new thread stay unknown.
// 4. A stack of an old generation may be gone. So each table belongs to an era of the stack table, which
//    ends when a new generation begins. A reader finds nothing of another era.
// 5. Never destroyed, as the recorder.
#pragma once

#include <atomic>
#include <cstdint>

#include "hooks/autograd_abi.h"
#include "hooks/hook_abi.h"
#include "record/node_types.h"
#include "record/stack_table.h"
#include "record/thread_slot.h"
#include "support/reserved_array.h"
#include "support/spin_lock.h"

namespace pytracer {

// The nodes [first, end) that a thread has made, of which the array has the last kNodes.
struct NodeTable {
  std::atomic<uint64_t> era{0};        // 0: the table is being reset
  std::atomic<uint64_t> first{0};
  std::atomic<uint64_t> announced{0};  // nodes below it have or had a place that is being written
  std::atomic<uint64_t> end{0};
  std::atomic<uint64_t>* nodes;
  const ThreadSlot* owner = nullptr;  // under the lock of claims, as the next
  uint64_t claim = 0;
};

class ForwardStacks {
 public:
  static constexpr uint32_t kTables = 32, kNodes = 1u << 17, kNear = 8;

  ForwardStacks();  // throws Error (no address space) or std::bad_alloc
  // Reads autograd's state by these functions from now on. No hook may use the object meanwhile.
  void read_by(const pytracer_autograd& autograd) noexcept { autograd_ = autograd; }

  // In a hook, for an event of the calling thread, whose own stack is `own`, as the last walk found it. Most
  // events are of the forward pass, and end here.
  bool has_nothing_to_add(ThreadSlot& slot, uint8_t action, uint32_t own) const noexcept {
    if (may_run_node(slot, own)) return false;
    if (action != PYTRACER_ALLOC && action != PYTRACER_OOM) return true;
    ForwardCursor& cursor = slot.forward;
    if (cursor.thread == 0 || autograd_.next_sequence() != cursor.next) return false;
    cursor.period = period_.load(std::memory_order_relaxed);
    return true;
  }

  // The same, for an allocation. Returns `own`, or the id of `own` with the forward stack of the node that
  // runs. kUnknownStack: a generation has begun since the walk, which has to be made anew.
  uint32_t attribute(StackTable& stacks, ThreadSlot& slot, const pytracer_event& allocation, uint32_t own) noexcept;

  // The same for a free. Returns `own`, or the id of `own` with the type of the node that runs.
  uint32_t attribute_free(StackTable& stacks, ThreadSlot& slot, uint32_t own) const noexcept {
    const char* const node_type = autograd_.running_type();
    const ForwardCursor::LastFree& last = slot.forward.last_free;
    const uint64_t seed = seed_of(stacks, slot, own);
    const bool is_known = node_type == last.node_type && own == last.own && seed == last.seed;
    return is_known ? last.id : note_free(stacks, slot, node_type, own, seed);
  }

  // Not in a hook. Allocations before this call may not have been seen.
  void begin_period() noexcept { period_.fetch_add(1, std::memory_order_relaxed); }
  void reset_after_fork() noexcept;

 private:
  struct Forward {
    uint32_t stack;  // 0: unknown
    bool is_exact;   // if the node's type and the allocation fit together
    bool is_on_cpu;  // the allocation
    uint16_t phase;  // of the thread then; 0: none
  };
  Forward find(uint64_t thread, uint64_t node, uint64_t era) const noexcept;
  void note(const pytracer_autograd_state& state, ThreadSlot& slot, const Forward& forward,
            bool is_first, uint64_t era) noexcept;
  void note_new_nodes(const pytracer_autograd_state& state, ThreadSlot& slot,
                      const pytracer_event& allocation, uint32_t stack, bool is_exact,
                      uint16_t phase, uint64_t era) noexcept;
  static uint32_t note_free(StackTable& stacks, ThreadSlot& slot, const char* node_type, uint32_t own,
                            uint64_t seed) noexcept;
  NodeTable* claim(ThreadSlot& slot, uint64_t thread) noexcept;

  // The number of the parameter whose gradient a node accumulates; 0: unknown, or another node.
  uint32_t parameter_of(const void* node) const noexcept;
  // Whether the noted allocation must have been that of the call that made `node`.
  bool fits(const Forward& forward, const void* node, NodeTypes::Output output) const noexcept;

  static uint64_t word_of(const Forward& forward) noexcept {
    return uint64_t{forward.phase} << 34 | uint64_t{forward.is_on_cpu} << 33 |
           uint64_t{forward.is_exact} << 32 | forward.stack;
  }
  static Forward forward_of(uint64_t word) noexcept {
    return {static_cast<uint32_t>(word), (word >> 32 & 1) != 0, (word >> 33 & 1) != 0,
            static_cast<uint16_t>(word >> 34)};
  }

  // Whether the calling thread may run a node. The process's first thread runs none but in the call of autograd's
  // engine, which a stack that is not cut has. (Code in C++ may call the engine, too: nodes of the CPU that then
  // run on this thread are not seen.) Asking torch would cost more than all else that an event needs.
  static bool may_run_node(const ThreadSlot& slot, uint32_t own) noexcept {
    return !slot.is_main || own == 0 || slot.walks.may_run_node();
  }
  // The seed of the walk that found `own`.
  static uint64_t seed_of(const StackTable& stacks, const ThreadSlot& slot, uint32_t own) noexcept {
    return own != 0 ? slot.walks.seed() : stacks.seed();
  }

  pytracer_autograd autograd_{};
  std::atomic<uint64_t> period_{1};
  std::atomic<uint64_t> threads_[kTables]{};  // torch's numbers, from 1 on; 0: the table is free
  NodeTable tables_[kTables];
  ReservedArray<std::atomic<uint64_t>> nodes_{size_t{kTables} * kNodes};
  SpinLock claims_;
  uint64_t last_claim_ = 0;
};

}  // namespace pytracer
