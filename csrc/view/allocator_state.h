// The state of the accelerators' allocator, and that of pinned host memory: segments and their
// blocks, settings, statistics.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hooks/hook_abi.h"

namespace pytracer {

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

}  // namespace pytracer
