// A device's trace, undone from the final state and run forward again: pytracer/reading/history.py.
//
// 1. Any values may be in the arrays. What does not fit together is a ContradictionError; nothing
//    is read or written outside of the arrays, and memory is bounded by their lengths.
// 2. Every event takes logarithmic time.
// 3. Knows nothing of Python; the caller keeps the arrays, as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "actions.h"
#include "allocator_rules.h"
#include "column.h"

namespace pytracer::reading {

// Says which event does not fit, or that the state does not by itself.
class ContradictionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct TraceView {
  size_t size;
  const uint8_t* action;
  const int64_t* address;
  const int64_t* size_bytes;
};

// The final state: the device's segments, and the blocks that are not free.
struct StateView {
  size_t segments;
  const int64_t* segment_address;
  const int64_t* segment_size_bytes;
  const bool* is_expandable;
  size_t blocks;
  const int64_t* block_address;
  const int64_t* block_size_bytes;
  const int64_t* requested_bytes;
  const bool* is_pending;
};

struct Levels {  // one more than there are events
  Column<int64_t> requested_bytes, allocated_bytes, active_bytes, reserved_bytes;
  Column<int64_t> inactive_split_bytes, largest_free_bytes, segments;
  Column<double> free_squares;

  explicit Levels(size_t entries) {
    for (Column<int64_t>* column :
         {&requested_bytes, &allocated_bytes, &active_bytes, &reserved_bytes,
          &inactive_split_bytes, &largest_free_bytes, &segments}) {
      column->zeroes(entries);
    }
    free_squares.zeroes(entries);
  }
};

struct Lifetimes {
  Column<int64_t> address, size_bytes, requested_bytes;
  Column<int32_t> alloc_event, free_requested_event, free_event;
  Column<int32_t> state_block;  // its index in the state; -1: it is not there in the end
  Column<bool> is_sized;
};

struct History {
  explicit History(size_t events) : levels(events + 1) {}

  Levels levels;
  Lifetimes blocks;  // by alloc_event, then by address
  int64_t exact_from = 0;
};

History replay(const TraceView& trace, const StateView& state, const AllocatorRules& rules);

}  // namespace pytracer::reading
