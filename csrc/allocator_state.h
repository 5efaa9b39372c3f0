// What an accelerator's allocator says of itself: its segments, their blocks, its settings,
// what it has counted.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hook.h"

namespace pytracer {

struct AllocatorState {
  struct Segment {
    pytracer_segment about;  // without its blocks, which are
    size_t first_block;      // blocks[first_block .. first_block + about.block_count)
  };
  std::vector<Segment> segments;  // by device and address
  std::vector<pytracer_block> blocks;
  struct Setting {
    pytracer_setting about;  // without its strings, which are
    std::string group, key, text;
  };
  std::vector<Setting> settings;
  std::vector<pytracer_statistics> statistics;  // by device
  std::string problem;  // why there are no segments; empty: none
};

// Asks the hook. On the calling thread the markers are recorded meanwhile. Not in a hook, without
// the GIL. What goes wrong is in `problem`; throws std::bad_alloc.
AllocatorState allocator_state(const pytracer_hook& hook);

}  // namespace pytracer
