#include "recorder.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <utility>

#include "owner.h"
#include "thread_slot.h"

namespace pytracer {

Recorder& Recorder::instance() noexcept {
  static Recorder* const recorder = new Recorder;  // leaked: contract 1
  return *recorder;
}

Recorder::Recorder() {
  init_thread_slots();
  pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
}

void Recorder::record(const pytracer_event* given) noexcept {
  Recorder& recorder = instance();
  ThreadSlot* slot = thread_slot();
  if (slot == nullptr || given->action >= PYTRACER_ACTION_COUNT) return;
  HookScope scope(*slot);
  DeviceLog* log = recorder.log(given->device);
  if (log == nullptr || log->mode() == Mode::off) return;
  const uint32_t stack =
      log->wants_stack(given->action) ? recorder.stack_of_thread(slot->walks) : 0;
  DeviceLog::Cut* cut = nullptr;
  if (given->action == PYTRACER_SNAPSHOT && slot->cuts != nullptr) {
    const int index = given->device + 1;
    if (std::exchange(slot->cuts->log[index], nullptr) == log) cut = slot->cuts->cut[index];
  }
  log->record(*given, stack, recorder.phases_.of(*slot), cut);
}

DeviceLog* Recorder::log(int device) const noexcept {
  const unsigned index = static_cast<unsigned>(device + 1);
  return index < kMaxDevices ? logs_[index].load(std::memory_order_acquire) : nullptr;
}

uint32_t Recorder::stack_of_thread(WalkMemo& walks) noexcept {
  StackTable* stacks = stacks_.load(std::memory_order_acquire);
  if (stacks == nullptr || !walking_.load(std::memory_order_acquire)) return 0;
  const uint32_t depth = depth_.load(std::memory_order_relaxed);
  const Following following = follow_frames(walks, depth, stacks->seed());
  if (following == Following::none) return 0;
  if (following == Following::same && walks.stack != 0) return walks.stack;
  const WalkKey key = walks.key();
  walks.stack = stacks->find(key);
  return walks.stack != 0 ? walks.stack : walk_and_intern(*stacks, depth, key, walks);
}

// Apart, so that the usual case needs no room for the frames on the stack.
__attribute__((noinline)) uint32_t Recorder::walk_and_intern(StackTable& stacks, uint32_t depth,
                                                             const WalkKey& key,
                                                             WalkMemo& walks) noexcept {
  RawFrame frames[kMaxStackDepth];
  const Walk walk = walk_frames(frames, depth);
  if (walk.frames == 0) return 0;
  const uint32_t id = stacks.intern(frames, walk, key);
  if (walk.keyed) walks.stack = id;
  return id;
}

void Recorder::stop_walking() noexcept {
  walking_.store(false, std::memory_order_seq_cst);
  wait_for_hooks();
}

void Recorder::code_destroyed(const void* code) noexcept {
  ThreadSlot* slot = thread_slot();
  if (slot == nullptr) return;
  HookScope scope(*slot);  // until it ends the table does not go
  StackTable* stacks = instance().stacks_.load(std::memory_order_acquire);
  if (stacks != nullptr) stacks->code_destroyed(code);
}

void Recorder::add_owner(Owner& owner) {
  // Whatever may fail comes first, and on failure the owner is as if it had never been added.
  std::vector<Owner::Cursor> cursors;
  std::vector<std::shared_ptr<DeviceLog>> logs = owned_logs_;
  std::shared_ptr<StackTable> stacks = owned_stacks_;
  if (!stacks) stacks = std::make_shared<StackTable>(owner.options_.max_stack_bytes);
  for (const int device : owner.options_.devices) {
    const auto found = std::find_if(logs.begin(), logs.end(),
                                    [&](const auto& log) { return log->device() == device; });
    if (found != logs.end()) {
      (*found)->ensure_ring(owner.options_.max_entries);
      cursors.push_back({*found, 0, {}});
    } else {
      logs.push_back(std::make_shared<DeviceLog>(device, owner.options_.max_entries));
      cursors.push_back({logs.back(), 0, {}});
    }
  }
  owners_.push_back(&owner);
  owned_logs_ = std::move(logs);
  owned_stacks_ = std::move(stacks);
  owner.cursors_ = std::move(cursors);
  owner.stacks_ = owned_stacks_;
  stacks_.store(owned_stacks_.get(), std::memory_order_release);
  for (const auto& log : owned_logs_) {
    logs_[log->device() + 1].store(log.get(), std::memory_order_release);
  }
}

void Recorder::remove_owner(Owner& owner) noexcept {
  owners_.erase(std::remove(owners_.begin(), owners_.end(), &owner), owners_.end());
  apply_wishes();
  if (!owners_.empty()) return;
  for (auto& log : logs_) log.store(nullptr, std::memory_order_seq_cst);
  stacks_.store(nullptr, std::memory_order_seq_cst);
  wait_for_hooks();
  owned_logs_.clear();
  owned_stacks_.reset();
}

void Recorder::apply_wishes() {
  uint32_t depth = 0;
  bool enabled[2] = {false, false};
  for (const auto& log : owned_logs_) {
    Mode mode = Mode::off;
    Context context = Context::none;
    for (const Owner* owner : owners_) {
      const auto& devices = owner->options_.devices;
      if (owner->mode_ == Mode::off ||
          std::find(devices.begin(), devices.end(), log->device()) == devices.end()) {
        continue;
      }
      mode = std::max(mode, owner->mode_.load());
      context = std::max(context, owner->wished_context());
      depth = std::max(depth, owner->options_.stack_depth);
    }
    log->set_mode(mode, context);
    enabled[log->device() == PYTRACER_CPU_DEVICE ? 0 : 1] |= mode != Mode::off;
  }
  // Never 0: a hook that is on its way may still read it.
  depth_.store(std::clamp(depth, 1u, kMaxStackDepth), std::memory_order_relaxed);
  for (int i = 0; i < 2; ++i) __atomic_store_n(&enabled_[i], enabled[i], __ATOMIC_RELEASE);
}

void Recorder::set_accelerator(const pytracer_hook& hook) {
  std::lock_guard lock(control_);
  accelerator_ = &hook;
  if (hook.now != nullptr) accelerator_clock_.emplace(hook.now);
}

std::exception_ptr Recorder::cut(const std::vector<DeviceLog*>& logs,
                                 std::vector<DeviceLog::Cut>& cuts, AllocatorState& state) {
  cuts.resize(logs.size());
  PendingCuts pending{};
  bool accelerators = false;
  for (size_t i = 0; i < logs.size(); ++i) {
    const int index = logs[i]->device() + 1;
    pending.log[index] = logs[i];
    pending.cut[index] = &cuts[i];
    accelerators |= !logs[i]->is_cpu();
  }
  ThreadSlot* slot = thread_slot();
  std::exception_ptr failure;
  if (accelerators && accelerator_ != nullptr && slot != nullptr) {
    slot->cuts = &pending;
    try {
      state = allocator_state(*accelerator_);
    } catch (...) {  // out of memory; the cuts that began have to be finished
      failure = std::current_exception();
    }
    slot->cuts = nullptr;
  }
  for (size_t i = 0; i < logs.size(); ++i) {
    // Without a marker: the CPU, and devices that the allocator does not know yet.
    if (pending.log[logs[i]->device() + 1] != nullptr) logs[i]->begin_cut(cuts[i]);
    try {
      logs[i]->finish_cut(cuts[i]);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  return failure;
}

void Recorder::hold_for_fork() noexcept {
  control_.lock();
  forking_ = std::this_thread::get_id();
}

void Recorder::release_after_fork() noexcept {
  if (forking_.load() != std::this_thread::get_id()) return;  // the fork did
  forking_ = std::thread::id();
  control_.unlock();
}

void Recorder::before_fork() noexcept {
  Recorder& recorder = instance();
  if (recorder.forking_.load() != std::this_thread::get_id()) recorder.control_.lock();
}

void Recorder::after_fork_in_parent() noexcept {
  instance().forking_ = std::thread::id();
  instance().control_.unlock();
}

void Recorder::after_fork_in_child() noexcept {
  // Other threads may have been inside the logs and the table: they are left as they were, leaked
  // (their pages are not even copied), never touched again.
  Recorder& recorder = instance();
  for (auto& log : recorder.logs_) log.store(nullptr, std::memory_order_relaxed);
  recorder.stacks_.store(nullptr, std::memory_order_relaxed);
  for (uint32_t& flag : recorder.enabled_) flag = 0;
  // If it was there, the device is lost to the child, and its lock may be held for ever.
  recorder.accelerator_ = nullptr;
  new (&recorder.owners_) std::vector<Owner*>();
  new (&recorder.owned_logs_) std::vector<std::shared_ptr<DeviceLog>>();
  new (&recorder.owned_stacks_) std::shared_ptr<StackTable>();
  recorder.process_number_.fetch_add(1, std::memory_order_relaxed);
  reset_thread_slots_after_fork();
  recorder.forking_ = std::thread::id();
  recorder.control_.unlock();
}

}  // namespace pytracer
