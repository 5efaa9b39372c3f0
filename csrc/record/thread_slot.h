// The recorder's state of each thread, and how it waits for threads that are inside a hook.
//
// 1. A slot belongs to one thread from its first event until the thread ends; then another thread
//    may get it. Slots are never freed: there are as many as there were threads at once. If the thread
//    that ends is in a phase, on_thread_end is called with its slot first.
// 2. HookScope makes its thread's count of scopes odd for the time of one event. That costs two
//    plain stores, because the waiting side pays for the ordering, with membarrier(2). Where the
//    kernel lacks it, both sides execute a fence. Scopes do not nest.
// 3. A change made before wait_for_hooks() is seen by every scope that begins after it, and scopes
//    that began before have ended when it returns. It does not wait for later ones: a thread that
//    records without a pause delays it by one event.
#pragma once

#include <atomic>
#include <cstdint>

#include "frames/walk_memo.h"

namespace pytracer {

struct PendingCaptures;
struct NodeTable;

// What a thread's slot keeps for ForwardStacks.
struct ForwardCursor {
  std::atomic<NodeTable*> table{nullptr};  // written by this thread alone; others only compare it
  uint64_t thread = 0;  // torch's number of the thread at its last allocation
  uint64_t next = 0;    // the number of its next node then
  uint64_t period = 0;  // ForwardStacks' period then
  // The last allocation that a node made, and the id that it got.
  struct Last {
    const char* node_type = nullptr;
    uint64_t thread = 0, sequence = 0, seed = 0;
    uint32_t own = 0, id = 0;
    uint32_t parameter = 0;
    uint32_t forward = 0;  // to pass on to nodes that the node makes
    uint16_t phase = 0;      // as `forward`
    bool is_exact = false;
  } last;
  // The last free, and the id that it got.
  struct LastFree {
    const char* node_type = nullptr;
    uint64_t seed = 0;
    uint32_t own = 0, id = 0;
  } last_free;

  // While no thread uses the slot.
  void reset() noexcept {
    table.store(nullptr, std::memory_order_relaxed);
    thread = next = period = 0;
    last = {};
    last_free = {};
  }
};

struct ThreadSlot {
  std::atomic<uint32_t> scopes{0};  // scopes begun and ended: odd within one
  std::atomic<uint32_t> noted{0};   // `scopes` at note_hooks()
  std::atomic<bool> owned{false};
  std::atomic<uint16_t> phase{0};  // the thread's innermost phase; 0: it is in none
  // If the thread's last event requested a free of an accelerator, and its stack was walked: the sum of
  // the block's address, a multiple of 512, and its device. Else 0.
  uint64_t requested_free = 0;
  bool is_native = false;    // the thread has had an event outside of Python code
  bool is_main = false;      // the process's first thread, which runs nodes inside of Python's call alone
  PendingCaptures* captures = nullptr;  // while the thread asks an allocator for its state
  ForwardCursor forward;
  ThreadSlot* next = nullptr;
  WalkMemo walks;
};

namespace detail {
// __thread and initial-exec: an access takes one instruction, not a call.
extern __thread ThreadSlot* this_thread __attribute__((tls_model("initial-exec")));
extern bool membarrier_works;
// Called on the thread that ends, with the slot that it had. Null: nobody has asked.
extern std::atomic<void (*)(ThreadSlot&) noexcept> on_thread_end;
__attribute__((cold)) ThreadSlot* claim_slot() noexcept;  // null: out of memory

// Without membarrier: stores the value before any later load of this thread. An exchange is not
// enough on ARM, where later loads may overtake its store.
inline void store_before_loads(std::atomic<uint32_t>& target, uint32_t value) noexcept {
#if defined(__SANITIZE_THREAD__)  // it knows no fences; on x86-64 an exchange is one
  target.exchange(value, std::memory_order_seq_cst);
#else
  target.store(value, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}
}  // namespace detail

// The calling thread's slot; null only when memory has run out.
inline ThreadSlot* thread_slot() noexcept {
  ThreadSlot* slot = detail::this_thread;
  return slot != nullptr ? slot : detail::claim_slot();
}

// All slots, linked by `next`.
ThreadSlot* all_thread_slots() noexcept;

class HookScope {
 public:
  explicit HookScope(ThreadSlot& slot) noexcept : slot_(slot) {
    if (detail::membarrier_works) {
      slot_.scopes.store(next(), std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      detail::store_before_loads(slot_.scopes, next());
    }
  }
  ~HookScope() { slot_.scopes.store(next(), std::memory_order_release); }
  HookScope(HookScope&&) = delete;

 private:
  uint32_t next() const noexcept { return slot_.scopes.load(std::memory_order_relaxed) + 1; }
  ThreadSlot& slot_;
};

// Once, before the first event.
void init_thread_slots() noexcept;
// Any thread, not in a hook.
void wait_for_hooks() noexcept;
// The same without waiting, for a hook. A change made before note_hooks() is seen by every scope
// that begins after it. Once noted_hooks_have_ended(), so have the scopes that began before,
// including the caller's own. One user at a time.
void note_hooks() noexcept;
bool noted_hooks_have_ended() noexcept;
// In a forked child, which has no other threads. Async-signal-safe.
void reset_thread_slots_after_fork() noexcept;

}  // namespace pytracer
