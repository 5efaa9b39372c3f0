// Runs the requests of a program through the allocator without a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "reading/column.h"
#include "reading/watch.h"
#include "simulator/allocator.h"

namespace pytracer::simulator {

// The values of Requests.kind in pytracer/analysis/requests.py.
enum class Kind : uint8_t { allocate, free, leave, fail, release_pool, empty_cache };

// A request that no program makes. Names the request and the value.
class RequestError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Columns of equal length.
struct Requests {
  size_t size;
  const uint8_t* kind;
  const int64_t* block;
  const int64_t* size_bytes;
  const int64_t* stream;
  const int64_t* pool;
};

struct Options {
  bool with_curve = false;
  bool with_calls = false;      // and the addresses of blocks
  bool continues = false;       // after an allocation that found no memory
};

struct Simulated {
  Counts counts;
  uint64_t allocated_at_peak_bytes = 0;  // when the reserved bytes first had their peak
  int64_t failed_request = -1;
  uint64_t fitted = 0;
  uint64_t freed_early = 0;
  reading::Column<int64_t> oom_requests;
  // With a curve: after each request. Requests after the failed one have the last values.
  reading::Column<int64_t> reserved_bytes, allocated_bytes;
  // With calls: the address of each allocated block by request, 0 for others, and the calls.
  reading::Column<int64_t> address;
  reading::Column<uint8_t> call;
  reading::Column<int64_t> call_request, call_address, call_bytes;
};

// With a start, the first allocations of its blocks are not made: the start has these blocks.
// Throws RequestError, or std::invalid_argument for a start. The memory is in proportion to the
// requests and the start.
Simulated simulate(const Requests& requests, const Rules& rules, const Options& options,
                   reading::Watch& watch, const Start* start = nullptr);

}  // namespace pytracer::simulator
