// Reconstructs a device's memory usage and the lifetimes of its blocks, for
// pytracer/analysis/history.py: the trace is undone from the final state and run forward again.
//
// 1. The arrays may hold any values. Values that do not fit together are a ContradictionError;
//    nothing outside of the arrays is read or written, and memory is bounded by their lengths.
// 2. Every event takes logarithmic time.
// 3. Every loop over events, blocks or segments asks the Watch.
// 4. The caller keeps the arrays alive and unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>

#include "allocator_rules.h"
#include "column.h"
#include "watch.h"

namespace pytracer::reading {

// Names the event or the part of the state that does not fit.
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

// The final state: the device's segments and its blocks in use.
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

// Samples of usage: sample 0 is before the first event, sample i + 1 is after event i.
struct Usage {
  Column<int64_t> requested_bytes, allocated_bytes, active_bytes, reserved_bytes;
  Column<int64_t> inactive_split_bytes, largest_free_bytes, segments;
  Column<double> free_squares;

  static auto columns_of(Usage& of) {
    return std::tie(of.requested_bytes, of.allocated_bytes, of.active_bytes, of.reserved_bytes,
                    of.inactive_split_bytes, of.largest_free_bytes, of.free_squares, of.segments);
  }
  explicit Usage(size_t samples) {
    std::apply([&](auto&... column) { (column.zeroes(samples), ...); }, columns_of(*this));
  }
};

struct Lifetimes {
  Column<int64_t> address, size_bytes, requested_bytes;
  Column<int32_t> alloc_event, free_requested_event, free_event;
  Column<int32_t> state_block;  // the block's index in the final state; -1: not in the state
  Column<bool> is_sized;

  static auto columns_of(Lifetimes& of) {
    return std::tie(of.address, of.size_bytes, of.requested_bytes, of.alloc_event, of.free_requested_event,
                    of.free_event, of.is_sized, of.state_block);
  }
};

struct History {
  explicit History(size_t events) : usage(events + 1) {}

  Usage usage;
  Lifetimes blocks;        // by alloc_event, then by address
  int64_t exact_from = 0;  // from this sample on all usage is exact
};

History replay(const TraceView& trace, const StateView& state, const AllocatorRules& rules,
               Watch& watch);

}  // namespace pytracer::reading
