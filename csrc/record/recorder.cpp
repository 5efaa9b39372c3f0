#include "record/recorder.h"

#include <algorithm>
#include <utility>

#include "record/device_log_record.h"
#include "record/thread_slot.h"

namespace pytracer {

namespace {
Recorder& g_recorder = Recorder::instance();  // found without a call, unlike instance()

// withdraw() waits for the scope, so a log and the stack table that are read in it stay valid in it.
template <class Use>
void in_scope(Use use) noexcept {
  ThreadSlot* slot = thread_slot();
  if (slot == nullptr || !g_recorder.is_whole()) return;
  HookScope scope(*slot);
  use(*slot);
}
}  // namespace

Recorder& Recorder::instance() noexcept {
  static Recorder* const recorder = new Recorder;  // leaked: contract 1
  return *recorder;
}

Recorder::Recorder() {
  init_thread_slots();
  Phases::instance();  // its handler of fork() is the first one
  enabled_[2] = 1;
}

void Recorder::record(const pytracer_event* given) noexcept {
  g_recorder.record(*given, given->action);
}

__attribute__((always_inline)) inline void Recorder::record(const pytracer_event& given,
                                                             uint8_t action) noexcept {
  ThreadSlot* slot = thread_slot();
  if (slot == nullptr) return;
  HookScope scope(*slot);
  DeviceLog* log = this->log(given.device);
  if (log == nullptr) return;
  if (action == PYTRACER_SNAPSHOT) return record_marker(given, *slot, *log);
  uint32_t stack = 0;
  if (log->wants_stack(action)) {
    const bool is_same_call = note_call(given, action, *slot);
    stack = stack_of_thread(slot->walks, is_same_call);
    ForwardStacks* const forward = forward_.load(std::memory_order_acquire);
    if (forward != nullptr && !forward->has_nothing_to_add(*slot, action, stack)) {
      stack = is_same_call ? attributed_completion(*slot, stack)
                           : attributed_stack(given, action, *slot, *forward, stack);
    }
  }
  log->record(given, action, stack, phase_of(*slot));
}

void Recorder::record_marker(const pytracer_event& marker, ThreadSlot& slot,
                             DeviceLog& log) noexcept {
  DeviceLog::Capture* capture = nullptr;
  if (slot.captures != nullptr) {
    const int index = marker.device + 1;
    if (std::exchange(slot.captures->log[index], nullptr) == &log) {
      capture = slot.captures->capture[index];
    }
  }
  log.record_marker(marker, phase_of(slot), capture);
}

inline uint16_t Recorder::phase_of(ThreadSlot& slot) noexcept {
  const uint16_t own = slot.phase.load(std::memory_order_relaxed);
  if (own != 0) return own;
  const uint16_t process = Phases::process_phase();
  return process == 0 || inherits_phase(slot) ? process : uint16_t{0};
}

// A thread of autograd has no Python frames, except while a node runs Python code. So a thread that
// has been seen without frames inherits from then on. Where frames cannot be read, every thread does.
bool Recorder::inherits_phase(ThreadSlot& slot) noexcept {
  if (slot.is_native || !walking_.load(std::memory_order_acquire)) return true;
  slot.is_native = !runs_python(slot.walks);
  return slot.is_native;
}

DeviceLog* Recorder::log(int device) const noexcept {
  const unsigned index = static_cast<unsigned>(device + 1);
  return index < kMaxDevices ? logs_[index].load(std::memory_order_acquire) : nullptr;
}

// An allocator that completes a free at once reports both events in one call. Then the completion
// has its request's stack, and no second walk is needed. docs/explanation/recorder.md says what else
// looks like one call.
inline bool Recorder::note_call(const pytracer_event& event, uint8_t action,
                                ThreadSlot& slot) noexcept {
  const uint64_t block = event.address + static_cast<uint16_t>(event.device);
  const bool is_same_call = action == PYTRACER_FREE_COMPLETED && slot.requested_free == block;
  slot.requested_free = action == PYTRACER_FREE_REQUESTED ? block : 0;
  return is_same_call;
}

inline uint32_t Recorder::stack_of_thread(WalkMemo& walks, bool is_same_call) noexcept {
  StackTable* stacks = stacks_.load(std::memory_order_acquire);
  if (stacks == nullptr || !walking_.load(std::memory_order_acquire)) return 0;
  const uint32_t depth = depth_.load(std::memory_order_relaxed);
  const uint32_t stack = find_stack(walks, depth, stacks->seed(), is_same_call);
  return stack != kUnknownStack ? stack : find_or_intern(*stacks, walks);
}

inline uint32_t Recorder::attributed_completion(const ThreadSlot& slot, uint32_t own) const noexcept {
  const StackTable* const stacks = stacks_.load(std::memory_order_acquire);
  const ForwardCursor::LastFree& requested = slot.forward.last_free;
  return stacks != nullptr && own == requested.own && stacks->seed() == requested.seed ? requested.id : own;
}

// Not inlined: most events need nothing of this. An accelerator's allocator reports what the program frees as a
// request, the CPU's at once.
__attribute__((noinline)) uint32_t Recorder::attributed_stack(const pytracer_event& event, uint8_t action,
                                                              ThreadSlot& slot, ForwardStacks& forward,
                                                              uint32_t own) noexcept {
  StackTable* stacks = stacks_.load(std::memory_order_acquire);
  if (stacks == nullptr || !walking_.load(std::memory_order_acquire)) return 0;
  const bool is_cpu = event.device == PYTRACER_CPU_DEVICE;
  uint32_t id = own;
  if (action == PYTRACER_ALLOC || action == PYTRACER_OOM) {
    id = forward.attribute(*stacks, slot, event, own);
  } else if (action == (is_cpu ? PYTRACER_FREE_COMPLETED : PYTRACER_FREE_REQUESTED)) {
    id = forward.attribute_free(*stacks, slot, own);
  }
  if (__builtin_expect(id == kUnknownStack, 0)) {  // a generation has begun meanwhile
    return attributed_stack(event, action, slot, forward, stack_of_thread(slot.walks, false));
  }
  // Links fill the table too, and the walks of a training that has gone on for a while are all known.
  if (stacks->wants_generation()) renewal_.step(*stacks, logs_, kMaxDevices);
  return id;
}

// Not inlined, so that the path of a walk that repeats is short.
__attribute__((noinline)) uint32_t Recorder::find_or_intern(StackTable& stacks,
                                                            WalkMemo& walks) noexcept {
  uint32_t stack = stacks.find_or_intern(walks);
  while (stack == kUnknownStack) {
    find_stack(walks, depth_.load(std::memory_order_relaxed), stacks.seed(), false);
    stack = stacks.find_or_intern(walks);
  }
  if (stacks.wants_generation()) renewal_.step(stacks, logs_, kMaxDevices);
  return stack;
}

void Recorder::stop_walking() noexcept {
  walking_.store(false, std::memory_order_seq_cst);
  wait_for_hooks();
}

void Recorder::code_destroyed(const void* code) noexcept {
  in_scope([&](ThreadSlot&) {
    StackTable* stacks = g_recorder.stacks_.load(std::memory_order_acquire);
    if (stacks != nullptr) stacks->code_destroyed(code);
  });
}

void Recorder::record_oom(const pytracer_event& oom, int64_t (*now)()) noexcept {
  in_scope([&](ThreadSlot& slot) {
    DeviceLog* log = g_recorder.log(oom.device);
    const uint16_t own = slot.phase.load(std::memory_order_relaxed);
    if (log != nullptr) log->record_oom(oom, own != 0 ? own : Phases::process_phase(), now);
  });
}

void Recorder::note_use(int device, uint64_t address, TensorRole role) noexcept {
  in_scope([&](ThreadSlot&) {
    DeviceLog* log = g_recorder.log(device);
    if (log != nullptr) log->note_use(address, role);
  });
}
void Recorder::withdraw() noexcept {
  for (auto& log : logs_) log.store(nullptr, std::memory_order_seq_cst);
  stacks_.store(nullptr, std::memory_order_seq_cst);
  wait_for_hooks();
  renewal_.reset();
}
void Recorder::set_stack_depth(uint32_t depth) noexcept {
  // Never 0: a hook that has begun may still read the depth when nobody wants stacks any more.
  depth_.store(std::clamp(depth, 1u, kMaxStackDepth), std::memory_order_relaxed);
}

void Recorder::set_forward_stacks(bool wanted) noexcept {
  forward_wanted_ = wanted;
  if (known_forward_ != nullptr) known_forward_->begin_period();
  forward_.store(wanted ? known_forward_ : nullptr, std::memory_order_release);
}

void Recorder::set_autograd(const pytracer_autograd& autograd) {
  forward_.store(nullptr, std::memory_order_seq_cst);
  wait_for_hooks();
  ForwardStacks* const forward = known_forward_ != nullptr ? known_forward_ : new ForwardStacks;
  forward->read_by(autograd);
  known_forward_ = forward;  // a child of a fork meanwhile has a complete one, or none
  set_forward_stacks(forward_wanted_);
}

void Recorder::reset_after_fork() noexcept {
  forward_.store(nullptr, std::memory_order_relaxed);
  if (known_forward_ != nullptr) known_forward_->reset_after_fork();
  node_types_.reset_after_fork();
  if (ParameterNumbers* const numbers = ParameterNumbers::instance()) numbers->reset_after_fork();
  for (auto& log : logs_) log.store(nullptr, std::memory_order_relaxed);
  stacks_.store(nullptr, std::memory_order_relaxed);
  renewal_.reset();
  for (const bool cpu : {true, false}) set_enabled(cpu, false);
  enabled_[2] = 1;
}

}  // namespace pytracer
