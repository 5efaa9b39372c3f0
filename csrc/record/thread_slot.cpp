#include "record/thread_slot.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

namespace pytracer {

namespace detail {
__thread ThreadSlot* this_thread = nullptr;
bool membarrier_works = false;
std::atomic<void (*)(ThreadSlot&) noexcept> on_thread_end{nullptr};
}  // namespace detail

namespace {

std::atomic<ThreadSlot*> g_slots{nullptr};  // all slots; the list only grows
pthread_key_t g_thread_end;                 // its destructor releases the slot
bool g_thread_end_works = false;            // otherwise slots are never released

void release_slot(void* ended_slot) {
  ThreadSlot& slot = *static_cast<ThreadSlot*>(ended_slot);
  // Destructors that run after this one may still free tensors, and then claim a slot again.
  detail::this_thread = nullptr;
  if (slot.phase.load(std::memory_order_relaxed) != 0) {
    if (const auto ended = detail::on_thread_end.load(std::memory_order_acquire)) ended(slot);
  }
  slot.owned.store(false, std::memory_order_release);
}

long membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0); }

// A scope whose count is not seen after this sees everything that was stored before.
void order_against_hooks() noexcept {
  if (detail::membarrier_works) {
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  } else {
    static std::atomic<uint32_t> waits{0};
    detail::store_before_loads(waits, 0);
  }
}

}  // namespace

ThreadSlot* all_thread_slots() noexcept { return g_slots.load(std::memory_order_acquire); }

ThreadSlot* detail::claim_slot() noexcept {
  ThreadSlot* slot = all_thread_slots();
  for (; slot != nullptr; slot = slot->next) {
    bool free = false;
    if (slot->owned.compare_exchange_strong(free, true, std::memory_order_acq_rel)) break;
  }
  if (slot != nullptr) {
    slot->walks.forget();
    slot->is_native = false;
    slot->requested_free = 0;
    slot->forward.reset();
  } else {
    slot = new (std::nothrow) ThreadSlot;
    if (slot == nullptr) return nullptr;
    slot->owned.store(true, std::memory_order_relaxed);
    slot->next = g_slots.load(std::memory_order_relaxed);
    while (!g_slots.compare_exchange_weak(slot->next, slot, std::memory_order_acq_rel)) {
    }
  }
  slot->is_main = syscall(SYS_gettid) == getpid();
  detail::this_thread = slot;
  if (g_thread_end_works) pthread_setspecific(g_thread_end, slot);
  return slot;
}

void init_thread_slots() noexcept {
  static const bool once = [] {
    g_thread_end_works = pthread_key_create(&g_thread_end, &release_slot) == 0;
#if !defined(__SANITIZE_THREAD__)  // it cannot see membarrier's ordering
    detail::membarrier_works = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
#endif
    return true;
  }();
  (void)once;
}

void wait_for_hooks() noexcept {
  order_against_hooks();
  for (ThreadSlot* slot = all_thread_slots(); slot; slot = slot->next) {
    if (slot == detail::this_thread) continue;
    // A scope waits for a spin lock or the stack table's mutex at most, and does a bounded piece of
    // work, so it ends soon.
    const uint32_t now = slot->scopes.load(std::memory_order_seq_cst);
    if (now % 2 == 0) continue;
    while (slot->scopes.load(std::memory_order_acquire) == now) sched_yield();
  }
}

void note_hooks() noexcept {
  order_against_hooks();
  for (ThreadSlot* slot = all_thread_slots(); slot; slot = slot->next) {
    slot->noted.store(slot->scopes.load(std::memory_order_seq_cst), std::memory_order_relaxed);
  }
}

bool noted_hooks_have_ended() noexcept {
  // A slot that is newer than note_hooks() has 0 here, which is even.
  for (ThreadSlot* slot = all_thread_slots(); slot; slot = slot->next) {
    const uint32_t noted = slot->noted.load(std::memory_order_relaxed);
    if (noted % 2 != 0 && slot->scopes.load(std::memory_order_acquire) == noted) return false;
  }
  return true;
}

void reset_thread_slots_after_fork() noexcept {
  for (ThreadSlot* slot = all_thread_slots(); slot; slot = slot->next) {
    slot->scopes.store(0, std::memory_order_relaxed);
    slot->forward.reset();
    slot->is_main = slot == detail::this_thread;
    if (slot->is_main) continue;
    slot->captures = nullptr;  // on the stack of a thread that is gone
    slot->walks.forget();  // its thread may have been writing them
    slot->phase.store(0, std::memory_order_relaxed);
    slot->owned.store(false, std::memory_order_relaxed);
  }
}

}  // namespace pytracer
