#include "session/session.h"

#include <algorithm>
#include <utility>

namespace pytracer {

Session::Session(SessionOptions options)
    : registry_(Registry::instance()), options_(std::move(options)),
      process_number_(registry_.process_number()), begun_(now_ticks()) {}

Session::~Session() {
  if (!Recorder::instance().is_whole()) return;
  std::lock_guard lock(registry_.control());
  mode_ = Mode::off;
  if (registered_) registry_.remove(*this);
}

bool Session::is_ours() const noexcept {
  return process_number_ == registry_.process_number() && Recorder::instance().is_whole();
}

SessionOptions Session::options() {
  std::lock_guard lock(registry_.control());
  return options_;
}

Session::Wish Session::wish(int device) const noexcept {
  const auto& devices = options_.devices;
  if (std::find(devices.begin(), devices.end(), device) == devices.end()) return {};
  // Without history nobody sees the stacks of frees.
  const Context context = mode_ == Mode::on ? options_.context : std::min(options_.context, Context::alloc);
  return {mode_, paused_ ? Context::none : context, options_.stack_depth, options_.max_entries,
          options_.forward_stacks};
}

void Session::start(bool history, bool keeps_events) {
  if (!is_ours()) return;
  std::lock_guard lock(registry_.control());
  if (!registered_) {
    cursors_.reserve(options_.devices.size());  // nothing may throw once the session is added
    Registry::Resources resources = registry_.add(*this, options_);
    for (auto& log : resources.logs) cursors_.push_back({std::move(log)});
    stacks_ = std::move(resources.stacks);
    registered_ = true;
  }
  set_mode(history ? Mode::on : Mode::state, false, keeps_events);
}

void Session::pause() {
  if (!is_ours()) return;
  std::lock_guard lock(registry_.control());
  if (mode_ != Mode::off) set_mode(Mode::state, true);
}

void Session::set_mode(Mode mode, bool paused, bool keeps_events) {
  if (mode == mode_ && paused == paused_) return;
  // Cursors move before recording begins, so that they miss no event; they are kept if it begins.
  const int64_t ticks = now_ticks();
  keeps_events = keeps_events && mode_ != Mode::off && !paused_ &&
                 std::any_of(cursors_.begin(), cursors_.end(),
                             [](const Cursor& cursor) { return cursor.has_events(); });
  std::vector<Cursor> cursors = cursors_;
  for (Cursor& cursor : cursors) {
    const DeviceLog::Position position = cursor.log->position();
    if (!keeps_events || !cursor.has_events()) cursor.move_to(position);
    cursor.end = mode == Mode::on ? Cursor::kOpen : position.end;
  }
  std::deque<Step> steps;  // only the current step
  if (keeps_events) {
    steps = steps_;
  } else if (mode_ == Mode::off) {
    steps.push_back({step_, ticks, {}});
    for (const Cursor& cursor : cursors) steps.back().begins.push_back(cursor.begin);
    births_.clear();
    birth_stride_ = 1;
    registry_.note_step(*this, step_, ticks, steps.back().begins, add_birth());
  } else {
    steps.push_back(steps_.back());
  }
  const Mode mode_before = mode_;
  const bool paused_before = paused_;
  mode_ = mode;
  paused_ = paused;
  try {
    registry_.apply_wishes();
  } catch (...) {
    mode_ = mode_before;
    paused_ = paused_before;
    registry_.apply_wishes();
    throw;
  }
  cursors_ = std::move(cursors);
  steps_ = std::move(steps);
  final_captures_.clear();
  final_stacks_.clear();
  if (!keeps_events) begun_ = ticks;
}

void Session::begin_step(uint32_t number, bool replaces) {
  if (!is_ours()) return;
  std::lock_guard lock(registry_.control());
  step_ = number;
  if (mode_ == Mode::off) return;
  if (replaces) {
    // Of this window; of a long recording, not each step has one.
    const size_t replaced = birth_stride_ == 1 ? std::min(steps_.size(), births_.size()) - 1 : 0;
    steps_.erase(steps_.begin() + 1, steps_.end());
    steps_.front().number = number;
    births_.resize(births_.size() - replaced);
    births_.back().number = number;
    registry_.note_step(*this, number, steps_.front().ticks, steps_.front().begins, births_.back().epochs, true);
    return;
  }
  const int64_t ticks = now_ticks();
  std::vector<uint64_t> begins;
  for (const Cursor& cursor : cursors_) begins.push_back(cursor.log->position().end);
  add_step(ticks, std::move(begins));
}

void Session::add_step(int64_t ticks, std::vector<uint64_t> begins) {
  const size_t most = mode_ == Mode::state ? 1 : kMaxSteps;  // without events, only the current one
  registry_.note_step(*this, step_, ticks, begins, add_birth());
  steps_.push_back({step_, ticks, std::move(begins)});
  while (steps_.size() > most) steps_.pop_front();
}

std::vector<uint32_t> Session::add_birth() {
  std::vector<uint32_t> epochs;
  for (const Cursor& cursor : cursors_) epochs.push_back(cursor.log->mark().epoch);
  if (births_.size() >= kMaxBirths) {  // every second one goes
    for (size_t i = 1; i < births_.size() / 2; ++i) births_[i] = std::move(births_[2 * i]);
    births_.resize(births_.size() / 2);
    birth_stride_ *= 2;
  }
  if (births_.empty() || ++since_birth_ >= birth_stride_) {
    births_.push_back({step_, epochs});
    since_birth_ = 0;
  }
  return epochs;
}
void Session::change(uint32_t max_entries, uint32_t stack_depth, Context context) {
  if (!is_ours()) return;
  std::lock_guard lock(registry_.control());
  const uint32_t before = std::exchange(options_.max_entries, max_entries);
  try {
    registry_.fit_rings();
  } catch (...) {
    options_.max_entries = before;
    registry_.try_to_fit_rings();  // those that were changed
    throw;
  }
  options_.stack_depth = stack_depth;
  options_.context = context;
  registry_.apply_wishes();
}

void Session::stop() {
  if (!is_ours()) return;
  std::lock_guard lock(registry_.control());
  if (mode_ == Mode::off) return;
  // Recording ends in any case; without memory for the live blocks, they are not kept.
  std::exception_ptr failure;
  try {
    const auto pinned = StackTable::pinned(stacks_);
    failure = capture(final_captures_, final_state_);
    // device_view() takes the log's ring, which may have replaced this one.
    for (DeviceLog::Capture& capture : final_captures_) capture.ring.reset();
    if (pinned) final_stacks_ = pinned->generations();
  } catch (...) {
    failure = std::current_exception();
    final_captures_.clear();
    final_stacks_.clear();
  }
  mode_ = Mode::off;
  paused_ = false;
  ended_ = now_ticks();
  registry_.apply_wishes();
  if (failure) std::rethrow_exception(failure);
}

std::exception_ptr Session::capture(std::vector<DeviceLog::Capture>& captures,
                                    std::shared_ptr<const AllocatorState>& state) const {
  std::vector<DeviceLog*> logs;
  for (const Cursor& cursor : cursors_) logs.push_back(cursor.log.get());
  const auto fresh = std::make_shared<AllocatorState>();
  const std::exception_ptr failure = registry_.capture(logs, captures, *fresh);
  state = fresh;
  return failure;
}

void Session::clear() {
  if (!is_ours()) return;
  std::lock_guard lock(registry_.control());
  const int64_t ticks = stopped() ? ended_ : now_ticks();
  for (size_t i = 0; i < cursors_.size(); ++i) cursors_[i].move_to(position_of(i));
  begun_ = ticks;
  keep_last_step();
}

DeviceLog::Position Session::position_of(size_t device) const {
  if (stopped()) return final_captures_[device];
  return cursors_[device].log->position();
}

DeviceView Session::device_view(size_t index, DeviceLog::Capture capture) const {
  const Cursor& cursor = cursors_[index];
  if (stopped()) capture.ring = cursor.log->ring();  // may have been replaced since
  if (cursor.has_events()) capture.end = std::min(capture.end, cursor.end);
  const uint64_t end = capture.end;
  const uint64_t begin = cursor.has_events() ? cursor.begin : end;
  DeviceView view{cursor.log->device(), begin, 0, std::move(capture), nullptr, {}, {}, {}};
  const uint64_t allowed = end > options_.max_entries ? end - options_.max_entries : 0;
  view.first = std::min(end, std::max({view.begin, allowed, view.capture.ring->oldest()}));
  view.capture.counts.subtract(cursor.before);
  return view;
}

View Session::view(bool history, uint16_t phase) {
  std::lock_guard lock(registry_.control());
  View view = snapshot_view();
  view.phase = phase;
  if (!history) {
    for (DeviceView& device : view.devices) {
      device.begin = device.first = device.capture.end;
      device.uses.clear();
    }
  }
  return view;
}

View Session::end_window(bool history, uint32_t step) {
  std::lock_guard lock(registry_.control());
  if (!is_ours() || mode_ == Mode::off) return snapshot_view();
  std::vector<uint64_t> begins(cursors_.size());
  const int64_t ticks = now_ticks();
  View view;
  std::exception_ptr failure;
  try {
    view = snapshot_view();
    view.steps.push_back({0, view.end});  // the window's last step has ended
  } catch (...) {
    failure = std::current_exception();
  }
  for (size_t i = 0; i < cursors_.size(); ++i) {
    Cursor& cursor = cursors_[i];
    if (failure) {
      cursor.move_to(position_of(i));
    } else {
      cursor.begin = view.devices[i].capture.end;
      cursor.before.add(view.devices[i].capture.counts);
    }
    begins[i] = cursor.begin;
  }
  begun_ = ticks;
  step_ = step;
  add_step(ticks, std::move(begins));
  keep_last_step();
  set_mode(history ? Mode::on : Mode::state, false);
  if (failure) std::rethrow_exception(failure);
  return view;
}

uint32_t Session::stack_of(uint64_t address) {
  if (!is_ours()) return 0;
  std::lock_guard lock(registry_.control());
  if (options_.context == Context::none || !stacks_) return 0;
  const auto pinned = StackTable::pinned(stacks_);  // a block may be freed before its stack is kept
  for (size_t i = 0; i < cursors_.size() && !stopped(); ++i) {
    if (const uint32_t stack = cursors_[i].log->stack_of(address)) {
      block_stack_ = pinned->generations();
      return stack;
    }
  }
  return 0;
}

// Throws std::bad_alloc.
View Session::snapshot_view() {
  View view{options_.stack_depth, options_.context, options_.forward_stacks};
  if (!is_ours()) return view;
  view.stacks = StackTable::pinned(stacks_);
  view.final_stacks = final_stacks_;
  std::vector<DeviceLog::Capture> captures = final_captures_;
  view.state = final_state_;
  view.begin = begun_;
  view.end = ended_;
  if (!stopped()) {
    if (const auto failure = capture(captures, view.state)) std::rethrow_exception(failure);
    view.end = now_ticks();
  }
  add_devices(view, std::move(captures));
  for (size_t i = 0; i < cursors_.size(); ++i) {
    DeviceView& device = view.devices[i];
    device.uses = cursors_[i].log->uses(device.first, device.capture.end);
  }
  for (const Step& step : steps_) view.steps.push_back({step.number, step.ticks});
  view.phases = Phases::instance().since(view.begin);
  return view;
}

std::vector<DeviceLog::Mark> Session::mark() {
  std::vector<DeviceLog::Mark> marks;
  if (!is_ours()) return marks;
  std::lock_guard lock(registry_.control());
  for (const Cursor& cursor : cursors_) marks.push_back(cursor.log->mark());
  return marks;
}

std::map<int, std::vector<LiveBlock>> Session::live_blocks() {
  std::map<int, std::vector<LiveBlock>> found;
  if (!is_ours()) return found;
  std::lock_guard lock(registry_.control());
  for (const Cursor& cursor : cursors_) {
    DeviceLog::Capture now;
    cursor.log->begin_capture(now);
    cursor.log->finish_capture(now);
    found[cursor.log->device()] = std::move(now.blocks);
  }
  return found;
}

View Session::events() {
  std::lock_guard lock(registry_.control());
  View view{options_.stack_depth, options_.context, options_.forward_stacks};
  if (!is_ours()) return view;
  view.stacks = StackTable::pinned(stacks_);
  std::vector<DeviceLog::Capture> captures;
  for (size_t i = 0; i < cursors_.size(); ++i) captures.push_back({position_of(i), {}, {}});
  add_devices(view, std::move(captures));
  return view;
}

void Session::add_devices(View& view, std::vector<DeviceLog::Capture> captures) {
  WallClock& own = registry_.clock_of(PYTRACER_CPU_DEVICE);
  view.clock = own.calibrate();
  std::shared_ptr<const WallClock::Pairs> accelerators;
  for (size_t i = 0; i < cursors_.size(); ++i) {
    DeviceView device = device_view(i, std::move(captures[i]));
    WallClock& clock = registry_.clock_of(device.device);
    if (&clock != &own && !accelerators) accelerators = clock.calibrate();
    device.clock = &clock == &own ? view.clock : accelerators;
    for (const Step& step : steps_) device.steps.push_back({step.number, step.begins[i]});
    for (const Birth& birth : births_) device.births.push_back({birth.epochs[i], birth.number});
    view.devices.push_back(std::move(device));
  }
}

std::shared_ptr<StackTable> Session::stacks() {
  std::lock_guard lock(registry_.control());
  return is_ours() ? StackTable::pinned(stacks_) : nullptr;
}

StackTable::Generations Session::keep_returned() {
  std::lock_guard lock(registry_.control());
  return returned_stacks_ = stacks_->generations();
}

Session::Stats Session::stats() {
  Stats stats{};
  if (!is_ours()) return stats;
  std::lock_guard lock(registry_.control());
  if (stacks_) stats.stacks = stacks_->stats();
  for (size_t i = 0; i < cursors_.size(); ++i) {
    const Cursor& cursor = cursors_[i];
    const DeviceLog& log = *cursor.log;
    const DeviceView view = device_view(i, {position_of(i), {}, {}});
    uint64_t live_blocks = log.live().blocks();
    uint64_t live_block_bytes = log.live().block_bytes();
    if (stopped()) {
      live_blocks = final_captures_[i].blocks.size();
      live_block_bytes = 0;
      for (const LiveBlock& block : final_captures_[i].blocks) live_block_bytes += block.size;
    }
    const uint64_t end = view.capture.end;
    stats.devices.push_back({view.device, end - view.begin, end - view.first, view.overwritten(),
                             log.ring()->committed_bytes(),
                             uint64_t{log.ring()->capacity()} * sizeof(Event), live_blocks,
                             live_block_bytes, log.live().committed_bytes(),
                             log.live().max_bytes(), view.capture.counts});
  }
  return stats;
}

}  // namespace pytracer
