// Finds the stacks that nothing refers to, so that a full stack table gives up those first.
//
// 1. step() runs in hooks that had to intern a stack, while the table wants a collection. It does
//    the next piece of the collection, some thousand stacks, and never waits: if another
//    thread is in step(), or something is not finished, it returns.
// 2. First the table's marks and its seed change: each stack that a hook uses from then on is
//    interned, which marks it. Then the hooks end that began before and may have ids in hand. Then
//    the stacks of the live tables and rings are marked, and those that are held (StackTable::holding).
//    Then the table frees what is unmarked.
// 3. So the id of a freed stack is in no ring, no live table, no queue and no hook. Captures and views are
//    copies of rings and live tables. Their owner pins the table, which then frees nothing.
// 4. A ring that replaces another one may hold events that were overwritten in the old ring before
//    the marking came past. So who replaces a ring pins the table too, and makes the marks stale.
#pragma once

#include <atomic>

#include "record/device_log.h"
#include "record/stack_table.h"

namespace pytracer {

class StackCollector {
 public:
  // In a hook, without any lock. `logs` are the published ones; null entries are left out.
  void step(StackTable& stacks, const std::atomic<DeviceLog*>* logs, int log_count) noexcept;
  // For the next stack table. While no hook runs that has the old one.
  void reset() noexcept;

 private:
  bool mark(StackTable& stacks, const std::atomic<DeviceLog*>* logs, int log_count) noexcept;

  std::atomic<bool> busy_{false};  // guards all below
  enum class Stage { idle, waiting_for_hooks, marking, sweeping } stage_ = Stage::idle;
  int log_ = 0;  // the log that is being marked
  DeviceLog::StackScan scan_;
};

}  // namespace pytracer
