#include "view/events.h"

#include <algorithm>

namespace pytracer {

std::vector<Event> copy_events(const DeviceView& device) {
  std::vector<Event> events(device.capture.end - device.first);
  const uint64_t first = device.capture.ring->copy(device.first, device.capture.end, events.data());
  events.erase(events.begin(), events.begin() + static_cast<ptrdiff_t>(first - device.first));
  return events;
}

EntryActions entry_actions(const Event& event, bool is_cpu) noexcept {
  if (event.action == kFreeAtOnce) return {{PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED}, 2};
  if (is_cpu && event.action == PYTRACER_ALLOC) {
    return {{PYTRACER_SEGMENT_ALLOC, PYTRACER_ALLOC}, 2};
  }
  if (is_cpu && event.action == PYTRACER_FREE_COMPLETED) {
    return {{PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED, PYTRACER_SEGMENT_FREE}, 3};
  }
  return {{event.action}, 1};
}

bool has_events(const View& view) {
  return std::any_of(view.devices.begin(), view.devices.end(), [&](const DeviceView& device) {
    return any_event(device, [&](const Event& event, uint64_t) {
      return event.action != PYTRACER_SNAPSHOT && view.shows(event.phase);
    });
  });
}

uint64_t accelerator_entries(const View& view) {
  uint64_t entries = 0;
  for (const DeviceView& device : view.devices) {
    if (device.is_cpu()) continue;
    any_event(device, [&](const Event& event, uint64_t) {
      if (view.shows(event.phase)) entries += entry_actions(event, false).count;
      return false;
    });
  }
  return entries;
}

void keep_last_entries(View& view, uint64_t most) {
  for (DeviceView& device : view.devices) {
    const std::vector<Event> events = copy_events(device);
    uint64_t entries = 0;
    device.first = device.capture.end;
    for (auto event = events.rbegin(); event != events.rend(); ++event, --device.first) {
      entries += entry_actions(*event, device.is_cpu()).count;
      if (entries > most) break;
    }
  }
}

uint32_t birth_step(const DeviceView& device, const Event& free, uint32_t step) noexcept {
  using Birth = DeviceView::Birth;
  const auto is_before = [](uint32_t given, const Birth& birth) { return given < birth.number; };
  const auto after = std::upper_bound(device.births.begin(), device.births.end(), step, is_before);
  if (free.birth() == 0 || after == device.births.begin()) return 0;
  // The block's epoch is near that of the step, so its last 16 bits tell it.
  const uint32_t near = std::prev(after)->epoch;
  const auto distance = static_cast<int16_t>(free.birth() - static_cast<uint16_t>(near));
  return device.birth_step(near + static_cast<uint32_t>(distance));
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
