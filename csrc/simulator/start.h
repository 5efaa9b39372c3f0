// The memory that an allocator has at the start of a simulation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pytracer::simulator {

// Columns of the segments, and of the blocks that fill them: both by address. A segment is one that
// does not expand, or a mapped part of one that does.
struct Start {
  size_t segments = 0;
  const int64_t* address = nullptr;        // of the segment
  const int64_t* range_address = nullptr;  // the lowest known address of the expandable segment
  const int64_t* size_bytes = nullptr;
  const int64_t* stream = nullptr;
  const int64_t* pool = nullptr;
  const int64_t* order = nullptr;  // the place among all segments, in the order of their creation
  const bool* is_small = nullptr;
  const bool* is_expandable = nullptr;

  size_t blocks = 0;
  const int64_t* block_segment = nullptr;
  const int64_t* block_size_bytes = nullptr;
  const int64_t* block_number = nullptr;  // in the requests; -1: the block is free
  const int64_t* block_order = nullptr;   // the place among all blocks, in the order of their creation
};

}  // namespace pytracer::simulator
