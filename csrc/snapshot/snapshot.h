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

// When phases and steps began and ended, as external_annotations has it.
struct Annotation {
  int64_t time_ns;
  int64_t opened;   // ticks: of two annotations that begin at once, the outer one was opened first
  uint32_t number;  // of the step or the phase
  bool is_step;
  bool is_end;
};

// The annotations of a view from `begin_ns` (wall time) on, in order of time. A phase or step that
// is open at `begin_ns` begins there; one that is open at the view's end has no end. Steps are
// written only if the view has more than one.
std::vector<Annotation> annotations(const View& view, int64_t begin_ns);

// Writes the snapshot. Takes no lock; any thread, without the GIL. Throws IoError, bad_alloc.
void write_snapshot(const View& view, const SnapshotExtras& extras, ByteSink& sink);

}  // namespace pytracer
