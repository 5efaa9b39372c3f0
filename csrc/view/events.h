// The events of a view, as its session may see them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "view/view.h"

namespace pytracer {

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
