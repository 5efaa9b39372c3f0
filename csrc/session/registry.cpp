#include "session/registry.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "record/thread_slot.h"
#include "session/session.h"

namespace pytracer {

Registry& Registry::instance() noexcept {
  static Registry* const registry = new Registry;  // leaked: contract 1
  return *registry;
}

Registry::Registry() { pthread_atfork(nullptr, nullptr, &after_fork_in_child); }

// Other threads of the parent may have been in the middle of a change when the child was copied. So
// the child destroys nothing of what they may have been changing: logs and stack table are leaked
// (their pages are not even copied), and new objects take the places of the old ones.
void Registry::after_fork_in_child() noexcept {
  Registry& registry = instance();
  Box::after_fork_in_child();
  registry.recorder_.reset_after_fork();
  new (&registry.control_) std::mutex;
  // A device that was in use is lost to the child, and its lock may be held for ever.
  registry.accelerator_ = nullptr;
  new (&registry.accelerator_clock_) std::optional<WallClock>();
  new (&registry.clock_) WallClock(&now_ticks);
  new (&registry.sessions_) std::vector<Session*>();
  new (&registry.logs_) std::vector<std::shared_ptr<DeviceLog>>();
  new (&registry.stacks_) std::shared_ptr<StackTable>();
  new (&registry.box_) std::shared_ptr<Box>();
  new (&registry.notes_) std::unique_ptr<BoxNotes>();
  new (&registry.keeper_) std::unique_ptr<Keeper>();
  registry.process_number_.fetch_add(1, std::memory_order_relaxed);
  reset_thread_slots_after_fork();
}

Registry::Resources Registry::add(Session& session, const SessionOptions& options) {
  // Whatever may throw comes first.
  Resources resources;
  std::vector<std::shared_ptr<DeviceLog>> logs = logs_;
  resources.stacks = stacks_ ? stacks_ : std::make_shared<StackTable>(options.max_stack_bytes, box_);
  for (const int device : options.devices) {
    const auto found = std::find_if(logs.begin(), logs.end(), [&](const auto& log) { return log->device() == device; });
    if (found != logs.end()) {
      resize_ring(**found, std::max(options.max_entries, (*found)->max_entries()));
      resources.logs.push_back(*found);
    } else {
      logs.push_back(std::make_shared<DeviceLog>(device, options.max_entries, box_));
      resources.logs.push_back(logs.back());
    }
  }
  sessions_.push_back(&session);
  logs_ = std::move(logs);
  stacks_ = resources.stacks;
  if (keeper_) keeper_->look_after(stacks_);
  recorder_.publish(*stacks_);
  for (const auto& log : logs_) recorder_.publish(*log);
  return resources;
}

void Registry::resize_ring(DeviceLog& log, uint32_t max_entries) {
  if (max_entries == log.max_entries()) return;
  const auto pinned = StackTable::pinned(stacks_);
  log.resize_ring(max_entries);
  if (pinned) pinned->note_replaced_ring();
}

void Registry::fit_rings() {
  for (const auto& log : logs_) {
    uint32_t most = 1;  // where no session is left
    for (const Session* session : sessions_) {
      most = std::max(most, session->wish(log->device()).max_entries);
    }
    resize_ring(*log, most);
  }
}

void Registry::try_to_fit_rings() noexcept {
  try {
    fit_rings();
  } catch (...) {
  }
}

void Registry::remove(Session& session) noexcept {
  sessions_.erase(std::remove(sessions_.begin(), sessions_.end(), &session), sessions_.end());
  apply_wishes();
  if (!sessions_.empty()) return try_to_fit_rings();
  recorder_.withdraw();
  keeper_.reset();
  logs_.clear();
  stacks_.reset();
  notes_.reset();
  if (box_) box_->close_file();  // a view may still need what is in it
  box_.reset();
}

void Registry::open_box(int file) {
  std::lock_guard lock(control_);
  if (!sessions_.empty() || box_) {
    close(file);
    throw Error("this process is recorded already, by a tracer without an output");
  }
  Box::watch([]() noexcept {
    for (const bool cpu : {true, false}) Recorder::instance().set_enabled(cpu, false);
  });
  auto box = std::make_shared<Box>(file);
  notes_ = std::make_unique<BoxNotes>(box);
  keeper_ = std::make_unique<Keeper>(box);
  box_ = std::move(box);
  note_clocks();
}

void Registry::describe_box(std::string_view text) {
  std::lock_guard lock(control_);
  if (!notes_) return;
  note_clocks();
  notes_->describe(text);
}

void Registry::note_step(const Session& session, uint32_t number, int64_t ticks,
                         const std::vector<uint64_t>& begins,
                         const std::vector<uint32_t>& epochs, bool replaces) {
  if (!notes_ || sessions_.empty() || sessions_.front() != &session) return;
  if (replaces) notes_->forget_steps();
  const std::vector<int>& devices = session.devices();
  for (size_t i = 0; i < begins.size(); ++i) {
    notes_->note_step({begins[i], ticks, number, devices[i], epochs[i]});
  }
}

void Registry::note_clocks() noexcept {
  notes_->note_clock(clock_.pair());
  if (accelerator_clock_) notes_->note_accelerator_clock(accelerator_clock_->pair());
}

void Registry::apply_wishes() {
  uint32_t depth = 0;
  for (const auto& log : logs_) {
    for (const Session* session : sessions_) {
      const Session::Wish wish = session->wish(log->device());
      if (wish.mode != Mode::off) depth = std::max(depth, wish.stack_depth);
    }
  }
  // Before any log is on: the first events would have another depth. When all are off, hooks that
  // have begun still use the depth, so it stays.
  if (depth != 0) recorder_.set_stack_depth(depth);
  bool cpu_enabled = false, accelerators_enabled = false, forward_stacks = false;
  for (const auto& log : logs_) {
    Mode mode = Mode::off;
    Context context = Context::none;
    for (const Session* session : sessions_) {
      const Session::Wish wish = session->wish(log->device());
      if (wish.mode == Mode::off) continue;
      mode = std::max(mode, wish.mode);
      context = std::max(context, wish.context);
      forward_stacks |= wish.forward_stacks && wish.context != Context::none;
    }
    log->set_mode(mode, context);
    (log->is_cpu() ? cpu_enabled : accelerators_enabled) |= mode != Mode::off;
  }
  recorder_.set_forward_stacks(forward_stacks);
  const bool has_tables = !Box::was_lost();
  recorder_.set_enabled(true, cpu_enabled && has_tables);
  recorder_.set_enabled(false, accelerators_enabled && has_tables);
}

void Registry::set_hook(const pytracer_hook& hook, bool is_host) {
  std::lock_guard lock(control_);
  (is_host ? host_ : accelerator_) = &hook;
  if (hook.now != nullptr) accelerator_clock_.emplace(hook.now);
}

Registry::Workspaces Registry::workspaces() {
  constexpr int64_t kRoom = 4096;
  std::lock_guard lock(control_);
  if (accelerator_ == nullptr || accelerator_->workspaces == nullptr) return {};
  std::vector<pytracer_workspace> found(kRoom);
  const int64_t count = accelerator_->workspaces(found.data(), kRoom);
  if (count < 0) return {{}, 1};
  found.resize(static_cast<size_t>(std::min(count, kRoom)));
  return {std::move(found), static_cast<uint64_t>(std::max<int64_t>(count - kRoom, 0))};
}

void Registry::record_oom(int device, uint64_t requested_size, uint64_t free_size) {
  pytracer_event event{};
  event.action = PYTRACER_OOM;
  event.address = free_size;
  event.size = requested_size;
  event.device = static_cast<int16_t>(device);
  std::lock_guard lock(control_);
  Recorder::record_oom(event, accelerator_ != nullptr ? accelerator_->now : nullptr);
}

void Registry::set_autograd(const pytracer_autograd& autograd) {
  std::lock_guard lock(control_);
  recorder_.set_autograd(autograd);
}

std::exception_ptr Registry::capture(const std::vector<DeviceLog*>& logs,
                                     std::vector<DeviceLog::Capture>& captures,
                                     AllocatorState& state) {
  captures.resize(logs.size());
  PendingCaptures pending{};
  bool accelerators = false, host = false;
  for (size_t i = 0; i < logs.size(); ++i) {
    const int index = logs[i]->device() + 1;
    pending.log[index] = logs[i];
    pending.capture[index] = &captures[i];
    const bool is_host = logs[i]->device() == PYTRACER_HOST_DEVICE;
    host |= is_host;
    accelerators |= !is_host && !logs[i]->is_cpu();
  }
  ThreadSlot* slot = thread_slot();
  std::exception_ptr failure;
  accelerators = accelerators && accelerator_ != nullptr;
  host = host && host_ != nullptr;
  if ((accelerators || host) && slot != nullptr) {
    slot->captures = &pending;
    try {
      if (accelerators) state = allocator_state(*accelerator_);
      if (host) state.add(allocator_state(*host_));
    } catch (...) {  // out of memory; the captures that began still have to be finished
      failure = std::current_exception();
    }
    slot->captures = nullptr;
  }
  for (size_t i = 0; i < logs.size(); ++i) {
    // The CPU has no marker, nor has a device that the allocator does not know yet.
    if (pending.log[logs[i]->device() + 1] != nullptr) logs[i]->begin_capture(captures[i]);
    try {
      logs[i]->finish_capture(captures[i]);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  return failure;
}

namespace {

constexpr char kNode[] = "backward";  // its address stands for the node, too

enum class Kind : char { not_asked, autograd, other };
// As in thread_slot.h. torch names a thread before it runs a node, so the first answer stays true. A
// thread that a node starts inherits the name, and is then taken for one of autograd.
__thread Kind this_thread __attribute__((tls_model("initial-exec"))) = Kind::not_asked;

Kind kind_by_name() noexcept {
  char name[16] = "";
  constexpr char kPrefix[] = "pt_autograd_";
  const bool is_autograd = pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
                           std::strncmp(name, kPrefix, sizeof(kPrefix) - 1) == 0;
  return is_autograd ? Kind::autograd : Kind::other;
}

const char* running_type() {
  if (this_thread == Kind::not_asked) this_thread = kind_by_name();
  return this_thread == Kind::autograd ? kNode : nullptr;
}

void read(pytracer_autograd_state* state) {
  *state = {};
  state->node_type = running_type();
  state->node = state->node_type;
  state->node_sequence = UINT64_MAX;
}

uint64_t no_sequence() { return 0; }
int32_t no() { return 0; }
int32_t no_output(const void*, int32_t*) { return 0; }
int32_t not_known(const void*) { return 0; }
uint64_t no_parameter(const void*, int32_t*) { return 0; }

}  // namespace

const pytracer_autograd autograd_threads = {PYTRACER_AUTOGRAD_ABI, &read,      &no_sequence,
                                            &running_type,         &no,        &no_output,
                                            &not_known,            &not_known, &no_parameter};

}  // namespace pytracer
