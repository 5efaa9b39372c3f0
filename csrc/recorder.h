// The process's recorder: every hook's events end here, every owner reads from here.
//
// 1. One instance, made at the first use and never destroyed: allocators free memory after static
//    destructors have run.
// 2. record() runs on any thread, inside the allocator, with or without the GIL. It never throws,
//    never waits for the GIL and never calls into an allocator that is recorded.
// 3. Logs and the stack table come with the first owner and go with the last. They go only when no
//    hook is inside (wait_for_hooks), and a snapshot that still needs them shares them.
// 4. stop_walking() ends all stack walks and waits for those in flight: to be called before thread
//    states are freed. Recording goes on without stacks.
// 5. A forked child starts off and empty: it forgets the parent's logs without touching them, and
//    can be traced anew. Owners of the parent are inert there.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator_state.h"
#include "clock.h"
#include "device_log.h"
#include "phases.h"
#include "stack_table.h"

namespace pytracer {

class Owner;

constexpr int kMaxDevices = 65;  // the CPU and 64 accelerators

// Cuts that begin at the snapshot markers which this thread's allocator_state() call causes.
struct PendingCuts {
  DeviceLog* log[kMaxDevices];       // by device + 1; null: not wanted, or begun
  DeviceLog::Cut* cut[kMaxDevices];
};

class Recorder {
 public:
  static Recorder& instance() noexcept;

  // Any thread, in a hook.
  static void record(const pytracer_event* event) noexcept;
  // What hooks read before they call record(): nonzero while anything is recorded there.
  const uint32_t* enabled_flag(bool cpu) const noexcept { return &enabled_[cpu ? 0 : 1]; }

  // Any thread, not in a hook.
  void stop_walking() noexcept;
  // Records stacks from now on, if `possible` (frame_walk_problem() found none).
  void set_walking(bool possible) noexcept { walking_.store(possible, std::memory_order_release); }
  // From now on cuts of accelerators are made at its snapshot markers. With the hook attached.
  void set_accelerator(const pytracer_hook& hook);
  // Counts forks: what was made under another number belongs to the parent.
  uint64_t process_number() const noexcept {
    return process_number_.load(std::memory_order_relaxed);
  }

  // Any thread.
  static void code_destroyed(const void* code) noexcept;

  // Without the GIL, on a thread that will fork with it: there the control lock is not to be waited
  // for. Let go by the fork, in parent and child, or by release_after_fork().
  void hold_for_fork() noexcept;
  void release_after_fork() noexcept;

 private:
  friend class Owner;
  Recorder();

  // For Owner, under control_.
  void add_owner(Owner& owner);
  void remove_owner(Owner& owner) noexcept;
  void apply_wishes();  // the strongest wish of all recording owners, to each device
  DeviceLog* log(int device) const noexcept;
  // A consistent cut of each log, each at an instant of its own, and the accelerator's state at
  // those. Without memory for the live blocks: cuts without them, and the exception.
  std::exception_ptr cut(const std::vector<DeviceLog*>& logs, std::vector<DeviceLog::Cut>& cuts,
                         AllocatorState& state);
  // The clock that a device's events are stamped with.
  WallClock& clock_of(int device) noexcept {
    return device != PYTRACER_CPU_DEVICE && accelerator_clock_ ? *accelerator_clock_ : clock_;
  }

  uint32_t stack_of_thread(WalkMemo& walks) noexcept;  // the calling one
  uint32_t walk_and_intern(StackTable& stacks, uint32_t depth, const WalkKey& key,
                           WalkMemo& walks) noexcept;
  static void before_fork() noexcept;
  static void after_fork_in_parent() noexcept;
  static void after_fork_in_child() noexcept;

  // Read by hooks.
  std::atomic<DeviceLog*> logs_[kMaxDevices]{};  // by device + 1
  std::atomic<StackTable*> stacks_{nullptr};
  std::atomic<bool> walking_{false};
  std::atomic<uint32_t> depth_{1};
  const Phases& phases_ = Phases::instance();
  uint32_t enabled_[2]{0, 0};  // CPU, accelerators; atomic by __atomic builtins: part of a C ABI

  std::mutex control_;  // all below; nobody waits for it with the GIL
  std::atomic<std::thread::id> forking_{};  // the thread that holds it for its fork
  std::vector<Owner*> owners_;
  std::vector<std::shared_ptr<DeviceLog>> owned_logs_;
  std::shared_ptr<StackTable> owned_stacks_;
  const pytracer_hook* accelerator_ = nullptr;
  WallClock clock_{&now_ticks};
  std::optional<WallClock> accelerator_clock_;  // where its hook stamps events itself
  std::atomic<uint64_t> process_number_{0};
};

}  // namespace pytracer
