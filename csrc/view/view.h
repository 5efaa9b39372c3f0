// What a session sees at one instant. A snapshot is written from a view, without the session.
//
// Each device is captured at an instant of its own. A view shares what it needs with the recorder,
// so that it outlives its session.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "record/clock.h"
#include "record/device_log.h"
#include "record/phases.h"
#include "record/stack_table.h"
#include "view/allocator_state.h"
#include "view/owners.h"

namespace pytracer {

struct DeviceView {
  int device;
  uint64_t begin;  // number of the session's first event
  uint64_t first;  // of its first event that the ring holds and that is within max_entries
  DeviceLog::Capture capture;
  std::shared_ptr<const WallClock::Pairs> clock;  // of the events' ticks
  struct Step {
    uint32_t number;
    uint64_t begin;  // number of its first event
  };
  std::vector<Step> steps;  // in order; events before the first one belong to no step
  struct Birth {
    uint32_t epoch;  // the least one of blocks that were allocated in the step
    uint32_t number;
  };
  std::vector<Birth> births;  // in order, also of steps without events
  // The step of a block's allocation, by its epoch. 0: none, or unknown.
  uint32_t birth_step(uint32_t epoch) const noexcept {
    const auto is_older = [](uint32_t given, const Birth& birth) { return given < birth.epoch; };
    const auto after = std::upper_bound(births.begin(), births.end(), epoch, is_older);
    return after == births.begin() ? 0 : std::prev(after)->number;
  }
  std::vector<TensorUse> uses;  // in order; empty in Session::events()
  bool is_cpu() const noexcept { return device == PYTRACER_CPU_DEVICE; }
  bool is_host() const noexcept { return device == PYTRACER_HOST_DEVICE; }
  uint64_t overwritten() const noexcept { return first - begin; }
};

struct View {
  uint32_t stack_depth = 0;  // the session's, as the next
  Context context = Context::none;
  bool forward_stacks = false;
  std::vector<DeviceView> devices;
  std::shared_ptr<StackTable> stacks;  // pinned since before the captures
  StackTable::Generations final_stacks;  // of the blocks of a session that has stopped
  std::shared_ptr<const AllocatorState> state;  // of the accelerators; null in Session::events()
  std::shared_ptr<const Owners> owners;         // of the live blocks; null: not known
  uint16_t phase = 0;  // the events of this phase are shown, and of those within it; 0: all events
  bool shows(uint16_t event_phase) const {
    return phase == 0 || Phases::instance().is_within(event_phase, phase);
  }

  // The steps and phases of the window; empty in Session::events().
  struct Step {
    uint32_t number;
    int64_t begin;  // now_ticks(), as all that follows
  };
  std::vector<Step> steps;
  Phases::Spans phases;
  int64_t begin = 0, end = 0;                     // all events are within
  std::shared_ptr<const WallClock::Pairs> clock;  // of now_ticks()
};

}  // namespace pytracer
