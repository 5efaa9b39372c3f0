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
#pragma once

#include <atomic>

#include "record/device_log.h"
#include "record/stack_table.h"

namespace pytracer {

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
