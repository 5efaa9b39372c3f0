#include "record/stack_collector.h"

#include "record/thread_slot.h"

namespace pytracer {

namespace {

constexpr uint32_t kMarkBursts = 64;  // in one step

}  // namespace

void StackCollector::step(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                          int log_count) noexcept {
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  switch (phase_) {
    case Phase::idle:
      if (!stacks.wants_collection()) break;  // another thread has just finished
      stacks.begin_collection();
      note_hooks();
      phase_ = Phase::waiting_for_hooks;
      break;
    case Phase::waiting_for_hooks:
      if (!noted_hooks_have_ended()) break;
      stacks.begin_marking();
      log_ = 0;
      scan_ = {};
      phase_ = Phase::marking;
      break;
    case Phase::marking:
      if (mark(stacks, logs, log_count)) phase_ = Phase::sweeping;
      break;
    case Phase::sweeping:
      switch (stacks.sweep()) {
        case StackTable::Sweep::unfinished:
          break;
        case StackTable::Sweep::done:
          phase_ = Phase::idle;
          break;
        case StackTable::Sweep::marks_are_stale:
          phase_ = Phase::waiting_for_hooks;  // they have ended; the marking begins anew
      }
  }
  busy_.store(false, std::memory_order_release);
}

bool StackCollector::mark(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                          int log_count) noexcept {
  uint32_t ids[DeviceLog::kStackBurst];
  for (uint32_t burst = 0; burst < kMarkBursts; ++burst) {
    DeviceLog* log = nullptr;
    for (; log_ < log_count; ++log_) {
      log = logs[log_].load(std::memory_order_acquire);
      if (log != nullptr && scan_.part != DeviceLog::StackScan::done) break;
      log = nullptr;
      scan_ = {};
    }
    if (log == nullptr) return true;
    stacks.mark(ids, log->copy_stacks(scan_, ids));
  }
  return false;
}

void StackCollector::reset() noexcept {
  busy_.store(false, std::memory_order_relaxed);
  phase_ = Phase::idle;
}

}  // namespace pytracer
