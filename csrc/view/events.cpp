#include "view/events.h"

namespace pytracer {

std::vector<Event> copy_events(const DeviceView& device) {
  std::vector<Event> events(device.capture.end - device.first);
  const uint64_t first = device.capture.ring->copy(device.first, device.capture.end, events.data());
  events.erase(events.begin(), events.begin() + static_cast<ptrdiff_t>(first - device.first));
  return events;
}

bool has_events(const View& view) {
  Event event;
  for (const DeviceView& device : view.devices) {
    for (uint64_t sequence = device.first; sequence < device.capture.end; ++sequence) {
      const bool is_held = device.capture.ring->copy(sequence, sequence + 1, &event) == sequence;
      if (is_held && event.action != PYTRACER_SNAPSHOT && view.shows(event.phase)) return true;
    }
  }
  return false;
}

uint64_t accelerator_entries(const View& view) {
  uint64_t entries = 0;
  Event event;
  for (const DeviceView& device : view.devices) {
    if (device.is_cpu()) continue;
    for (uint64_t sequence = device.first; sequence < device.capture.end; ++sequence) {
      const bool is_held = device.capture.ring->copy(sequence, sequence + 1, &event) == sequence;
      const bool is_marker = device.is_host() && event.action == PYTRACER_SNAPSHOT;
      if (!is_held || is_marker || !view.shows(event.phase)) continue;
      entries += event.action == kFree ? 2 : 1;
    }
  }
  return entries;
}

uint32_t visible_stack(const Event& event, Context context) noexcept {
  if (context == Context::all) return event.stack;
  if (context != Context::alloc) return 0;
  if (is_free(event)) return event.alloc_stack;
  const bool is_release =
      event.action == PYTRACER_SEGMENT_FREE || event.action == PYTRACER_SEGMENT_UNMAP;
  return is_release && event.alloc_stack != 0 ? event.alloc_stack : event.stack;
}

}  // namespace pytracer
