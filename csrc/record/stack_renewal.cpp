#include "record/stack_renewal.h"

#include "record/thread_slot.h"

namespace pytracer {

constexpr uint32_t kBursts = 256;  // in one step

void StackRenewal::step(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                        int log_count) noexcept {
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  switch (stage_) {
    case Stage::idle:
      // Otherwise another thread has just finished.
      if (!stacks.wants_generation() || !stacks.begin_generation()) break;
      note_hooks();
      stage_ = Stage::waiting_for_hooks;
      break;
    case Stage::waiting_for_hooks:
      if (!noted_hooks_have_ended()) break;
      stage_ = Stage::renewing;
      break;
    case Stage::renewing:
      if (renew(stacks, logs, log_count)) stage_ = Stage::ending;
      break;
    case Stage::ending:
      switch (stacks.end_generation()) {
        case StackTable::End::pinned: break;
        case StackTable::End::done: stage_ = Stage::idle; break;
        case StackTable::End::again: stage_ = Stage::renewing;
      }
  }
  busy_.store(false, std::memory_order_release);
}

bool StackRenewal::renew(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                         int log_count) noexcept {
  for (uint32_t burst = 0; burst < kBursts;) {
    DeviceLog* const log = log_ < log_count ? logs[log_].load(std::memory_order_acquire) : nullptr;
    if (log != nullptr && scan_.part != DeviceLog::StackScan::done) {
      log->renew_stacks(scan_, stacks);
      ++burst;
      continue;
    }
    scan_ = {};
    if (++log_ < log_count) continue;
    log_ = 0;
    return true;
  }
  return false;
}

void StackRenewal::reset() noexcept {
  busy_.store(false, std::memory_order_relaxed);
  stage_ = Stage::idle;
  log_ = 0;
  scan_ = {};
}

}  // namespace pytracer
