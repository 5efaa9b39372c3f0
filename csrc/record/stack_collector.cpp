#include "record/stack_collector.h"

#include "record/thread_slot.h"

namespace pytracer {

namespace {

// In one step. A stack that was not marked before costs more than an id.
constexpr uint32_t kMarkBursts = 64, kMarkedStacks = 8192;

}  // namespace

void StackCollector::step(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                          int log_count) noexcept {
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  switch (stage_) {
    case Stage::idle:
      if (!stacks.wants_collection()) break;  // another thread has just finished
      stacks.begin_collection();
      note_hooks();
      stage_ = Stage::waiting_for_hooks;
      break;
    case Stage::waiting_for_hooks:
      if (!noted_hooks_have_ended()) break;
      stacks.clear_stale();
      log_ = 0;
      scan_ = {};
      stage_ = Stage::marking;
      break;
    case Stage::marking:
      if (mark(stacks, logs, log_count)) stage_ = Stage::sweeping;
      break;
    case Stage::sweeping:
      switch (stacks.sweep()) {
        case StackTable::Sweep::unfinished:
          break;
        case StackTable::Sweep::done:
          stage_ = Stage::idle;
          break;
        case StackTable::Sweep::marks_are_stale:
          stage_ = Stage::waiting_for_hooks;  // they have ended; the marking begins anew
      }
  }
  busy_.store(false, std::memory_order_release);
}

bool StackCollector::mark(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                          int log_count) noexcept {
  uint32_t ids[DeviceLog::kStackBurst];
  uint32_t marked = 0;
  for (uint32_t burst = 0; burst < kMarkBursts && marked < kMarkedStacks; ++burst) {
    DeviceLog* log = nullptr;
    for (; log_ < log_count; ++log_) {
      log = logs[log_].load(std::memory_order_acquire);
      if (log != nullptr && scan_.part != DeviceLog::StackScan::done) break;
      log = nullptr;
      scan_ = {};
    }
    if (log == nullptr) {
      if (stacks.mark_held()) return true;
      continue;
    }
    marked += stacks.mark(ids, log->copy_stacks(scan_, ids));
  }
  return false;
}

void StackCollector::reset() noexcept {
  busy_.store(false, std::memory_order_relaxed);
  stage_ = Stage::idle;
}

}  // namespace pytracer
