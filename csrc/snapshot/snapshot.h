// Writes a view as a PyTorch memory snapshot with pytracer's own key.
//
// The format is the one that torch.cuda.memory._snapshot() returns and torch/cuda/_memory_viz.py
// reads. An accelerator's segments and blocks are those that its allocator reported at the snapshot
// marker; the live table adds their stacks. CPU memory has no segments, but viewers need them: every
// CPU block is written as a segment of its own, every CPU allocation with a segment_alloc, and every
// free as free_requested, free_completed and segment_free. Pinned host memory has lists of its own,
// host_segments and host_traces, as torch writes them.
#pragma once

#include <map>
#include <string>

#include "snapshot/byte_sink.h"
#include "snapshot/stack_writer.h"
#include "view/view.h"

namespace pytracer {

// What the Python side adds. Items are pickle fragments without memo references.
struct SnapshotExtras {
  std::string pytracer_items;  // key, value, key, value ... for the `pytracer` dict
  std::map<int, std::string> device_items = {};  // the same for each device's entry there
  GeneratedCode generated_code = {};
  FileNames file_names = {};
};

// Writes the snapshot. Takes no lock; any thread, without the GIL. Throws IoError, bad_alloc.
void write_snapshot(const View& view, const SnapshotExtras& extras, ByteSink& sink);

}  // namespace pytracer
