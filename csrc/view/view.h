// What a session sees at one instant. A snapshot is written from a view, without the session.
//
// Each device is captured at an instant of its own. A view shares what it needs with the recorder,
// so that it outlives its session.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "record/clock.h"
#include "record/device_log.h"
#include "record/phases.h"
#include "record/stack_table.h"
#include "view/owners.h"

namespace pytracer {

// The state of the accelerators' allocator, and that of pinned host memory: segments and their
// blocks, settings, statistics.
struct AllocatorState {
  struct Segment {
    pytracer_segment about;  // its `blocks` are null; they are
    size_t first_block;      // blocks[first_block .. first_block + about.block_count)
  };
  std::vector<Segment> segments;  // by device and address
  std::vector<pytracer_block> blocks;
  struct Setting {
    pytracer_setting about;  // its strings may be gone; they are
    std::string group, key, text;
  };
  std::vector<Setting> settings;
  std::vector<pytracer_statistics> statistics;  // by device
  std::string problem;  // why there are no segments; empty: no problem

  // Adds the segments of another allocator, and its problem if there is none yet.
  void add(AllocatorState other);
};

// Asks the hook for the state. Meanwhile the snapshot markers are recorded on the calling thread.
// Not in a hook, without the GIL. Failures are reported in `problem`; throws std::bad_alloc.
AllocatorState allocator_state(const pytracer_hook& hook);

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
  std::vector<DeviceView> devices{};
  std::shared_ptr<StackTable> stacks{};  // pinned since before the captures
  StackTable::Generations final_stacks{};  // of the blocks of a session that has stopped
  std::shared_ptr<const AllocatorState> state{};  // of the accelerators; null in Session::events()
  std::shared_ptr<const Owners> owners{};       // of the live blocks; null: not known
  uint16_t phase = 0;  // the events of this phase are shown, and of those within it; 0: all events
  bool shows(uint16_t event_phase) const {
    return phase == 0 || Phases::instance().is_within(event_phase, phase);
  }

  // The steps and phases of the window; empty in Session::events().
  struct Step {
    uint32_t number;
    int64_t begin;  // now_ticks(), as all that follows
  };
  std::vector<Step> steps{};
  Phases::Spans phases{};
  int64_t begin = 0, end = 0;                     // all events are within
  std::shared_ptr<const WallClock::Pairs> clock{};  // of now_ticks()
};

constexpr uint64_t kEventChunk = 4096;  // events that a writer reads from the ring at a time: 192 KiB

// Calls `is_wanted` with the events that a device's ring still holds, and their numbers. Returns whether it was
// true; then it was not called again.
template <class Predicate>
bool any_event(const DeviceView& device, const Predicate& is_wanted) {
  std::vector<Event> chunk(std::min(kEventChunk, device.capture.end - device.first));
  for (uint64_t begin = device.first; begin < device.capture.end; begin += kEventChunk) {
    const uint64_t end = std::min(begin + kEventChunk, device.capture.end);
    for (uint64_t at = device.capture.ring->copy(begin, end, chunk.data()); at < end; ++at) {
      if (is_wanted(chunk[at - begin], at)) return true;
    }
  }
  return false;
}

// Copies a device's events. Returns those that were not overwritten meanwhile: a suffix.
std::vector<Event> copy_events(const DeviceView& device);

// The actions of the entries that an event has in a file, in order. A free that was completed at once
// has two. With `is_cpu`, the event has those that an allocator with segments would give.
struct EntryActions {
  std::array<uint8_t, 3> actions;
  uint32_t count;
  const uint8_t* begin() const noexcept { return actions.data(); }
  const uint8_t* end() const noexcept { return actions.data() + count; }
};
EntryActions entry_actions(const Event& event, bool is_cpu) noexcept;

// Whether the view shows an event other than the markers of snapshots.
bool has_events(const View& view);

// How many entries the traces of accelerators and of pinned memory have in the view's file.
uint64_t accelerator_entries(const View& view);

// Leaves out the oldest events of each device that has more entries in the view's file.
void keep_last_entries(View& view, uint64_t most);

// The step in which the block of a free was allocated, if the free was in `step`; 0: none, or unknown.
uint32_t birth_step(const DeviceView& device, const Event& free, uint32_t step) noexcept;

// The id of the stack that an event shows under `context`; 0: none.
uint32_t visible_stack(const Event& event, Context context) noexcept;

}  // namespace pytracer
