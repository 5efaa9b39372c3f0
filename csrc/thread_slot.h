// What the recorder keeps for each thread, and how it waits for threads that are inside a hook.
//
// 1. A slot belongs to one thread from its first event until the thread ends; then another thread
//    may get it. Slots are never returned to the system: as many as there were threads at once.
//    When the thread of a slot with a phase ends, on_thread_end gets the slot first.
// 2. HookScope makes its thread's count of scopes odd for the time of one event. In the usual case
//    that costs two plain stores: the waiting side pays for the ordering, with membarrier(2).
//    Scopes do not nest.
// 3. wait_for_hooks(): a change made before the call is seen by every scope that begins after it,
//    and scopes that began before have ended when it returns. It does not wait for later ones: a
//    thread that records without a pause holds it up for one event.
#pragma once

#include <atomic>
#include <cstdint>

#include "walk_memo.h"

namespace pytracer {

struct PendingCuts;

struct ThreadSlot {
  std::atomic<uint32_t> scopes{0};  // begun and ended: odd while in one
  std::atomic<bool> owned{false};
  std::atomic<uint16_t> phase{0};  // the thread's innermost one; 0: none of its own
  PendingCuts* cuts = nullptr;  // while this thread asks an allocator for its state
  ThreadSlot* next = nullptr;
  WalkMemo walks;  // of the last thread too that had the slot
};

namespace detail {
// __thread and initial-exec: the access is one instruction instead of a call.
extern __thread ThreadSlot* this_thread __attribute__((tls_model("initial-exec")));
extern bool membarrier_works;
// On the thread that ends, which has no slot by then. Null: nobody has asked.
extern std::atomic<void (*)(ThreadSlot&) noexcept> on_thread_end;
ThreadSlot* claim_slot() noexcept;  // null: out of memory
}  // namespace detail

// The calling thread's slot; null only when memory has run out.
inline ThreadSlot* thread_slot() noexcept {
  ThreadSlot* slot = detail::this_thread;
  return slot != nullptr ? slot : detail::claim_slot();
}

class HookScope {
 public:
  explicit HookScope(ThreadSlot& slot) noexcept
      : slot_(slot), begun_(slot.scopes.load(std::memory_order_relaxed) + 1) {
    if (detail::membarrier_works) {
      slot_.scopes.store(begun_, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      slot_.scopes.exchange(begun_, std::memory_order_seq_cst);
    }
  }
  ~HookScope() { slot_.scopes.store(begun_ + 1, std::memory_order_release); }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  ThreadSlot& slot_;
  const uint32_t begun_;
};

// Once, before the first event.
void init_thread_slots() noexcept;
// Any thread, not in a hook.
void wait_for_hooks() noexcept;
// In a forked child: the other threads are gone. Async-signal-safe.
void reset_thread_slots_after_fork() noexcept;

}  // namespace pytracer
