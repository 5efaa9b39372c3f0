// From a view to a file: PyTorch's memory snapshot format, with pytracer's own key beside.
//
// The format is the one torch.cuda.memory._snapshot() returns and torch/cuda/_memory_viz.py reads.
// An accelerator's segments and blocks are those its allocator told at the marker; the live table
// adds the stacks. CPU memory has no segments; so that viewers hold, every CPU allocation is written as a segment
// of its own, with its segment events, and every free as requested and completed.
#pragma once

#include <map>
#include <string>

#include "byte_sink.h"
#include "owner.h"

namespace pytracer {

// What the Python side adds, as pickle fragments without memo references.
struct SnapshotExtras {
  std::string pytracer_items;  // key, value, key, value ... for the `pytracer` dict
  std::map<int, std::string> device_items = {};  // likewise, by device, for its entry there
};

// Writes the snapshot and leaves the sink to commit. Lines and names must be resolved
// (StackTable::resolve). Holds no lock; any thread, without the GIL. Throws IoError, bad_alloc.
void write_snapshot(const View& view, const SnapshotExtras& extras, ByteSink& sink);

// Whether an event is in it, other than the markers of snapshots.
bool has_events(const View& view);

// Copies a device's events. Returns those that could still be read whole: a suffix, up to the end.
std::vector<Event> copy_events(const DeviceView& device);

// The stack an event shows to an owner with this context; 0: none.
uint32_t visible_stack(const Event& event, Context context) noexcept;

}  // namespace pytracer
