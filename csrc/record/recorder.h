// The hot path: every event of every hook enters the recorder here.
//
// 1. One instance, made at the first use and never destroyed: allocators free memory after static
//    destructors have run.
// 2. record() runs on any thread, inside the allocator ("in a hook"), with or without the GIL. It never
//    throws, never waits for the GIL and never calls an allocator that is recorded.
// 3. The registry (session/registry.h) publishes the logs and the stack table that record() uses.
//    withdraw() returns once no hook uses them any more, so that they can be destroyed.
// 4. stop_walking() ends all stack walks and waits for those in flight. It has to be called before
//    thread states are freed. Recording goes on without stacks.
// 5. An allocation in an autograd node has the stack of its thread and, where it is known, that of
//    the forward call that made the node (forward_stacks.h).
// 6. An event has the innermost phase of its thread. If the thread is in no phase and runs no Python
//    code, as a thread of autograd, the event has the process's phase (phases.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "record/device_log.h"
#include "record/forward_stacks.h"
#include "record/node_types.h"
#include "record/phases.h"
#include "support/reserved_array.h"

namespace pytracer {

constexpr int kMaxDevices = 66;  // the CPU, 64 accelerators and the pinned host memory

// The captures that begin at the snapshot markers of this thread's call of allocator_state().
struct PendingCaptures {
  DeviceLog* log[kMaxDevices];  // by device + 1; null: not wanted, or has begun
  DeviceLog::Capture* capture[kMaxDevices];
};

class Recorder {
 public:
  static Recorder& instance() noexcept;

  // Any thread, in a hook.
  static void record(const pytracer_event* event) noexcept;
  // The flag that hooks read before they call record(): nonzero while anything is recorded there.
  const uint32_t* enabled_flag(bool cpu) const noexcept { return &enabled_[cpu ? 0 : 1]; }
  // False in a child that was made without the handlers of fork(): it has nothing of what lies in a box.
  bool is_whole() const noexcept { return __atomic_load_n(&enabled_[2], __ATOMIC_RELAXED) != 0; }

  // Any thread, not in a hook.
  void stop_walking() noexcept;
  // Records stacks from now on. Only where frame_walk_problem() found no problem.
  void set_walking(bool walking) noexcept { walking_.store(walking, std::memory_order_release); }
  // Any thread.
  static void code_destroyed(const void* code) noexcept;
  // Any thread, not in a hook. Records an out-of-memory, if its device is recorded. It has no stack: that of the
  // failed allocation is gone. `now`: as in DeviceLog.
  static void record_oom(const pytracer_event& oom, int64_t (*now)()) noexcept;
  // Any thread, not in a hook. Notes the use of a tensor, if its device is recorded.
  static void note_use(int device, uint64_t address, TensorRole role) noexcept;

  // The registry, under its control lock, all below.
  void publish(DeviceLog& log) noexcept {
    logs_[log.device() + 1].store(&log, std::memory_order_release);
  }
  void publish(StackTable& stacks) noexcept { stacks_.store(&stacks, std::memory_order_release); }
  // Withdraws all logs and the stack table, and waits for the hooks that use them.
  void withdraw() noexcept;
  void set_enabled(bool cpu, bool enabled) noexcept {
    __atomic_store_n(&enabled_[cpu ? 0 : 1], enabled, __ATOMIC_RELEASE);
  }
  void set_stack_depth(uint32_t depth) noexcept;
  // Whether allocations in backward get forward stacks, from set_autograd() on.
  void set_forward_stacks(bool wanted) noexcept;
  // Of the process. Throws as ForwardStacks does.
  void set_autograd(const pytracer_autograd& autograd);
  // In a forked child: leaks what was published, because another thread may have been changing it.
  void reset_after_fork() noexcept;

 private:
  Recorder();

  void record(const pytracer_event& event, uint8_t action) noexcept;  // `action`: of the event
  __attribute__((cold)) void record_marker(const pytracer_event& marker, ThreadSlot& slot,
                                           DeviceLog& log) noexcept;
  DeviceLog* log(int device) const noexcept;
  // The phase of the calling thread's event: its own one, or that of the process.
  uint16_t phase_of(ThreadSlot& slot) noexcept;
  __attribute__((cold, noinline)) bool inherits_phase(ThreadSlot& slot) noexcept;
  // Returns whether the event completes the free that the thread requested last, in the same call of
  // the allocator.
  static bool note_call(const pytracer_event& event, uint8_t action, ThreadSlot& slot) noexcept;
  // The calling thread's stack. `is_same_call`: the last walk was for the request of the free that
  // this event completes, so it is taken over if the innermost frame has not moved on.
  uint32_t stack_of_thread(WalkMemo& walks, bool is_same_call) noexcept;
  // The stack `own` of the thread with what is known of the node that runs.
  uint32_t attributed_stack(const pytracer_event& event, uint8_t action, ThreadSlot& slot, ForwardStacks& forward,
                            uint32_t own) noexcept;
  // The same for the completion of the thread's last free, in the call that requested it.
  uint32_t attributed_completion(const ThreadSlot& slot, uint32_t own) const noexcept;
  uint32_t find_or_intern(StackTable& stacks, WalkMemo& walks) noexcept;

  std::atomic<DeviceLog*> logs_[kMaxDevices]{};  // by device + 1
  std::atomic<StackTable*> stacks_{nullptr};
  StackRenewal renewal_;
  std::atomic<bool> walking_{false};
  std::atomic<uint32_t> depth_{1};
  std::atomic<ForwardStacks*> forward_{nullptr};  // null: not wanted
  ForwardStacks* known_forward_ = nullptr;        // under the registry's control lock, as the next
  bool forward_wanted_ = false;
  NodeTypes& node_types_ = NodeTypes::instance();
  // CPU, accelerators; atomic by __atomic builtins: part of a C ABI. And is_whole(). Zeroes in a child.
  ReservedArray<uint32_t> enabled_{3};
};

}  // namespace pytracer
