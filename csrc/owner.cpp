#include "owner.h"

#include <algorithm>
#include <exception>

namespace pytracer {

Owner::Owner(OwnerOptions options)
    : recorder_(Recorder::instance()),
      options_(std::move(options)),
      process_number_(recorder_.process_number()),
      begun_(now_ticks()) {}

Owner::~Owner() {
  if (!is_ours()) {
    // The parent's logs: what they share is left alone, not released.
    new std::vector<Cursor>(std::move(cursors_));
    new std::shared_ptr<StackTable>(std::move(stacks_));
    new std::vector<DeviceLog::Cut>(std::move(final_cuts_));
    return;
  }
  std::lock_guard lock(recorder_.control_);
  mode_ = Mode::off;
  if (registered_) recorder_.remove_owner(*this);
}

bool Owner::is_ours() const noexcept { return process_number_ == recorder_.process_number(); }

OwnerOptions Owner::options() {
  std::lock_guard lock(recorder_.control_);
  return options_;
}

Context Owner::wished_context() const noexcept {
  if (paused_) return Context::none;
  // Stacks of frees are seen in events alone.
  return mode_ == Mode::on ? options_.context : std::min(options_.context, Context::alloc);
}

void Owner::start(bool history) {
  if (!is_ours()) return;
  std::lock_guard lock(recorder_.control_);
  if (!registered_) {
    recorder_.add_owner(*this);
    registered_ = true;
  }
  record(history ? Mode::on : Mode::state, false);
}

void Owner::pause() {
  if (!is_ours()) return;
  std::lock_guard lock(recorder_.control_);
  if (mode_ != Mode::off) record(Mode::state, true);
}

void Owner::record(Mode mode, bool paused) {
  if (mode == mode_ && paused == paused_) return;
  // Before recording begins, so that no event falls between; kept only once it has.
  const int64_t ticks = now_ticks();
  std::vector<Cursor> cursors = cursors_;
  for (Cursor& cursor : cursors) cursor.move_to(cursor.log->position());
  std::deque<Step> steps;  // the one that it is in
  if (mode_ == Mode::off) {
    steps.push_back({step_, ticks, {}});
    for (const Cursor& cursor : cursors) steps.back().begins.push_back(cursor.begin);
  } else {
    steps.push_back(steps_.back());
  }
  const Mode mode_before = mode_;
  const bool paused_before = paused_;
  mode_ = mode;
  paused_ = paused;
  try {
    recorder_.apply_wishes();
  } catch (...) {
    mode_ = mode_before;
    paused_ = paused_before;
    recorder_.apply_wishes();
    throw;
  }
  cursors_ = std::move(cursors);
  steps_ = std::move(steps);
  final_cuts_.clear();
  begun_ = ticks;
}

void Owner::begin_step(uint32_t number) {
  if (!is_ours()) return;
  std::lock_guard lock(recorder_.control_);
  step_ = number;
  if (mode_ == Mode::off) return;
  const int64_t ticks = now_ticks();
  std::vector<uint64_t> begins;
  for (const Cursor& cursor : cursors_) begins.push_back(cursor.log->position().end);
  add_step(ticks, std::move(begins));
}

void Owner::add_step(int64_t ticks, std::vector<uint64_t> begins) {
  if (mode_ == Mode::state) steps_.clear();  // there are no events
  steps_.push_back({step_, ticks, std::move(begins)});
  if (steps_.size() > kMaxSteps) steps_.pop_front();
}

void Owner::forget_steps() {
  while (steps_.size() > 1) steps_.pop_front();
}

void Owner::change(uint32_t max_entries, uint32_t stack_depth, Context context) {
  if (!is_ours()) return;
  std::lock_guard lock(recorder_.control_);
  for (const Cursor& cursor : cursors_) cursor.log->ensure_ring(max_entries);
  options_.max_entries = max_entries;
  options_.stack_depth = stack_depth;
  options_.context = context;
  recorder_.apply_wishes();
}

void Owner::stop() {
  if (!is_ours()) return;
  std::lock_guard lock(recorder_.control_);
  if (mode_ == Mode::off) return;
  // Recording ends whatever happens; without memory for the live blocks, without those.
  std::exception_ptr failure;
  try {
    failure = cut(final_cuts_, final_state_);
  } catch (...) {
    failure = std::current_exception();
    final_cuts_.clear();
  }
  if (mode_ == Mode::state) {  // it has no events of its own
    for (size_t i = 0; i < final_cuts_.size(); ++i) cursors_[i].begin = final_cuts_[i].end;
  }
  mode_ = Mode::off;
  paused_ = false;
  ended_ = now_ticks();
  recorder_.apply_wishes();
  if (failure) std::rethrow_exception(failure);
}

std::exception_ptr Owner::cut(std::vector<DeviceLog::Cut>& cuts,
                              std::shared_ptr<const AllocatorState>& state) const {
  std::vector<DeviceLog*> logs;
  for (const Cursor& cursor : cursors_) logs.push_back(cursor.log.get());
  const auto fresh = std::make_shared<AllocatorState>();
  const std::exception_ptr failure = recorder_.cut(logs, cuts, *fresh);
  state = fresh;
  return failure;
}

void Owner::clear() {
  if (!is_ours()) return;
  std::lock_guard lock(recorder_.control_);
  const int64_t ticks = stopped() ? ended_ : now_ticks();
  for (size_t i = 0; i < cursors_.size(); ++i) {
    cursors_[i].move_to(position_of(i));
  }
  begun_ = ticks;
  forget_steps();
}

DeviceLog::Cut Owner::position_of(size_t device) const {
  if (!stopped()) return cursors_[device].log->position();
  const DeviceLog::Cut& final_cut = final_cuts_[device];
  return {final_cut.end, final_cut.ring, final_cut.names, {}, {}, final_cut.counts,
          final_cut.used};
}

DeviceView Owner::view_of(size_t index, DeviceLog::Cut cut) const {
  const Cursor& cursor = cursors_[index];
  const uint64_t end = cut.end;
  const uint64_t begin = mode_ == Mode::state ? end : cursor.begin;
  DeviceView view{cursor.log->device(), begin, 0, std::move(cut), nullptr, {}};
  const uint64_t allowed = end > options_.max_entries ? end - options_.max_entries : 0;
  view.first = std::min(end, std::max({view.begin, allowed, view.cut.ring->oldest()}));
  view.cut.counts.subtract(cursor.before);
  return view;
}

View Owner::view(bool history, uint16_t phase) {
  std::lock_guard lock(recorder_.control_);
  View view = snapshot_view();
  view.phase = phase;
  if (!history) {
    for (DeviceView& device : view.devices) device.begin = device.first = device.cut.end;
  }
  return view;
}

View Owner::turn(bool history, uint32_t step) {
  std::lock_guard lock(recorder_.control_);
  if (!is_ours() || mode_ == Mode::off) return snapshot_view();
  std::vector<uint64_t> begins(cursors_.size());
  const int64_t ticks = now_ticks();
  View view;
  std::exception_ptr failure;
  try {
    view = snapshot_view();
    view.steps.push_back({0, view.end});  // its last one is over
  } catch (...) {
    failure = std::current_exception();
  }
  for (size_t i = 0; i < cursors_.size(); ++i) {
    Cursor& cursor = cursors_[i];
    if (failure) {
      cursor.move_to(position_of(i));
    } else {
      cursor.begin = view.devices[i].cut.end;
      cursor.before.add(view.devices[i].cut.counts);
    }
    begins[i] = cursor.begin;
  }
  begun_ = ticks;
  step_ = step;
  add_step(ticks, std::move(begins));
  forget_steps();
  record(history ? Mode::on : Mode::state, false);
  if (failure) std::rethrow_exception(failure);
  return view;
}

// Throws std::bad_alloc.
View Owner::snapshot_view() {
  View view;
  view.options = options_;
  if (!is_ours()) return view;
  std::vector<DeviceLog::Cut> cuts = final_cuts_;
  view.state = final_state_;
  view.begin = begun_;
  view.end = ended_;
  if (!stopped()) {
    if (const auto failure = cut(cuts, view.state)) std::rethrow_exception(failure);
    view.end = now_ticks();
  }
  complete(view, std::move(cuts));
  for (const Step& step : steps_) view.steps.push_back({step.number, step.ticks});
  view.phases = Phases::instance().since(view.begin);
  return view;
}

View Owner::events() {
  std::lock_guard lock(recorder_.control_);
  View view;
  view.options = options_;
  if (!is_ours()) return view;
  std::vector<DeviceLog::Cut> cuts;
  for (size_t i = 0; i < cursors_.size(); ++i) cuts.push_back(position_of(i));
  complete(view, std::move(cuts));
  return view;
}

void Owner::complete(View& view, std::vector<DeviceLog::Cut> cuts) {
  view.stacks = stacks_;
  WallClock& own = recorder_.clock_of(PYTRACER_CPU_DEVICE);
  view.clock = own.calibrate();
  std::shared_ptr<const WallClock::Pairs> accelerators;
  for (size_t i = 0; i < cursors_.size(); ++i) {
    DeviceView device = view_of(i, std::move(cuts[i]));
    WallClock& clock = recorder_.clock_of(device.device);
    if (&clock != &own && !accelerators) accelerators = clock.calibrate();
    device.clock = &clock == &own ? view.clock : accelerators;
    for (const Step& step : steps_) device.steps.push_back({step.number, step.begins[i]});
    view.devices.push_back(std::move(device));
  }
}

std::shared_ptr<StackTable> Owner::stacks() {
  std::lock_guard lock(recorder_.control_);
  return is_ours() ? stacks_ : nullptr;
}

Owner::Stats Owner::stats() {
  Stats stats{};
  if (!is_ours()) return stats;
  std::lock_guard lock(recorder_.control_);
  if (stacks_) stats.stacks = stacks_->stats();
  for (size_t i = 0; i < cursors_.size(); ++i) {
    const Cursor& cursor = cursors_[i];
    const DeviceLog& log = *cursor.log;
    uint64_t live_blocks = log.live().blocks();
    uint64_t live_block_bytes = log.live().block_bytes();
    if (stopped()) {
      live_blocks = final_cuts_[i].live.size();
      live_block_bytes = 0;
      for (const LiveBlock& block : final_cuts_[i].live) live_block_bytes += block.size;
    }
    const DeviceView view = view_of(i, position_of(i));
    stats.devices.push_back({view.device, view.cut.end - view.begin, view.cut.end - view.first,
                             view.overwritten(), log.ring()->committed_bytes(),
                             uint64_t{log.ring()->capacity()} * sizeof(Event), live_blocks,
                             live_block_bytes, log.live().committed_bytes(),
                             log.live().max_bytes(), view.cut.counts});
  }
  return stats;
}

}  // namespace pytracer
