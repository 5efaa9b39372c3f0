// The events of a view, as its session may see them.
#pragma once

#include <cstdint>
#include <vector>

#include "view/view.h"

namespace pytracer {

// Copies a device's events. Returns those that were not overwritten meanwhile: a suffix.
std::vector<Event> copy_events(const DeviceView& device);

// Whether the view shows an event other than the markers of snapshots.
bool has_events(const View& view);

// How many entries the traces of accelerators and of pinned memory have in the view's file.
uint64_t accelerator_entries(const View& view);

// The id of the stack that an event shows under `context`; 0: none.
uint32_t visible_stack(const Event& event, Context context) noexcept;

}  // namespace pytracer
