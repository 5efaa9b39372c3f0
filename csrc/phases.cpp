#include "phases.h"

#include <pthread.h>

#include <algorithm>

namespace pytracer {

Phases& Phases::instance() noexcept {
  static Phases* const phases = new Phases;
  return *phases;
}

Phases::Phases() {
  pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                 [] {
                   Phases& phases = instance();
                   ThreadSlot* slot = detail::this_thread;
                   auto& entered = phases.entered_;
                   entered.erase(std::remove_if(entered.begin(), entered.end(),
                                                [&](const Entry& each) { return each.slot != slot; }),
                                 entered.end());
                   phases.of_process_ = entered.empty() ? uint16_t{0} : entered.back().phase;
                   phases.mutex_.unlock();
                 });
  detail::on_thread_end.store([](ThreadSlot& slot) noexcept { instance().forget(slot); },
                              std::memory_order_release);
}

uint64_t Phases::enter(std::string_view name) {
  ThreadSlot* slot = thread_slot();
  std::lock_guard lock(mutex_);
  const uint16_t phase = names_.intern(name);
  if (slot == nullptr || phase == 0) return 0;
  entered_.push_back({++entries_, slot, phase});
  publish(*slot);
  return entries_;
}

void Phases::leave(uint64_t entry) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(entered_.begin(), entered_.end(),
                                  [&](const Entry& each) { return each.number == entry; });
  if (found == entered_.end()) return;
  ThreadSlot& slot = *found->slot;
  entered_.erase(found);
  publish(slot);
}

void Phases::forget(ThreadSlot& slot) noexcept {
  std::lock_guard lock(mutex_);
  entered_.erase(std::remove_if(entered_.begin(), entered_.end(),
                                [&](const Entry& each) { return each.slot == &slot; }),
                 entered_.end());
  publish(slot);
}

void Phases::publish(ThreadSlot& slot) noexcept {
  const auto innermost = std::find_if(entered_.rbegin(), entered_.rend(),
                                      [&](const Entry& each) { return each.slot == &slot; });
  slot.phase.store(innermost != entered_.rend() ? innermost->phase : uint16_t{0},
                   std::memory_order_relaxed);
  of_process_.store(entered_.empty() ? uint16_t{0} : entered_.back().phase,
                    std::memory_order_relaxed);
}

}  // namespace pytracer
