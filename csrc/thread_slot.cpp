#include "thread_slot.h"

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

std::atomic<ThreadSlot*> g_slots{nullptr};  // all there are; grows only
pthread_key_t g_thread_end;                 // its destructor gives the slot back
bool g_thread_end_works = false;            // else slots are never given back

void give_back(void* of_thread) {
  ThreadSlot& slot = *static_cast<ThreadSlot*>(of_thread);
  // Destructors that run after this one may still free tensors: they claim a slot anew.
  detail::this_thread = nullptr;
  if (slot.phase.load(std::memory_order_relaxed) != 0) {
    if (const auto ended = detail::on_thread_end.load(std::memory_order_acquire)) ended(slot);
  }
  slot.owned.store(false, std::memory_order_release);
}

long membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

ThreadSlot* detail::claim_slot() noexcept {
  ThreadSlot* slot = g_slots.load(std::memory_order_acquire);
  for (; slot != nullptr; slot = slot->next) {
    bool free = false;
    if (slot->owned.compare_exchange_strong(free, true, std::memory_order_acq_rel)) break;
  }
  if (slot == nullptr) {
    slot = new (std::nothrow) ThreadSlot;
    if (slot == nullptr) return nullptr;
    slot->owned.store(true, std::memory_order_relaxed);
    slot->next = g_slots.load(std::memory_order_relaxed);
    while (!g_slots.compare_exchange_weak(slot->next, slot, std::memory_order_acq_rel)) {
    }
  }
  detail::this_thread = slot;
  if (g_thread_end_works) pthread_setspecific(g_thread_end, slot);
  return slot;
}

void init_thread_slots() noexcept {
  static const bool once = [] {
    g_thread_end_works = pthread_key_create(&g_thread_end, &give_back) == 0;
#if !defined(__SANITIZE_THREAD__)  // it cannot see membarrier's ordering
    detail::membarrier_works = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
#endif
    return true;
  }();
  (void)once;
}

void wait_for_hooks() noexcept {
  if (detail::membarrier_works) {
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  } else {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  for (ThreadSlot* slot = g_slots.load(std::memory_order_acquire); slot; slot = slot->next) {
    if (slot == detail::this_thread) continue;
    // A scope never waits for anything but a spin lock, so this ends within microseconds of its
    // thread's running.
    const uint32_t now = slot->scopes.load(std::memory_order_seq_cst);
    if (now % 2 == 0) continue;
    while (slot->scopes.load(std::memory_order_acquire) == now) sched_yield();
  }
}

void reset_thread_slots_after_fork() noexcept {
  for (ThreadSlot* slot = g_slots.load(std::memory_order_acquire); slot; slot = slot->next) {
    slot->scopes.store(0, std::memory_order_relaxed);
    if (slot == detail::this_thread) continue;
    slot->walks.forget();  // its thread may have been writing
    slot->phase.store(0, std::memory_order_relaxed);
    slot->owned.store(false, std::memory_order_relaxed);
  }
}

}  // namespace pytracer
