// The numbers by which a caching allocator places blocks, by the rules of
// c10/cuda/CUDACachingAllocator.cpp and of torch_npu's NPUCachingAllocator.cpp. Where CUDA, NPU and
// releases differ, they differ in these numbers and flags alone.
#pragma once

#include <algorithm>
#include <cstddef>

#include "reading/allocator_rules.h"

namespace pytracer::simulator {

using reading::kMinBlockBytes;
using reading::kSmallBytes;
constexpr uint64_t kSmallSegmentBytes = 2 << 20;
constexpr uint64_t kLeastLargeBytes = 10 << 20;  // from this size on, a segment is for one request
constexpr uint64_t kUnitBytes = 2 << 20;         // of the sizes of segments, and of the device
constexpr uint64_t kNoLimit = UINT64_MAX;
// Requests above this size find no memory. No device is larger, and sums of sizes do not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

// Which of several free blocks of the same size is taken: that at the lowest address; the one that
// was created first; or that at the lowest address of the segment that was created first.
enum class Tie : uint8_t { by_address, by_creation, by_segment };

struct Rules {
  uint64_t padding_bytes = 0;  // added to each request (NPU)
  uint64_t max_split_bytes = kNoLimit;
  uint64_t max_rounding_bytes = uint64_t{20} << 20;
  uint64_t large_segment_bytes = uint64_t{20} << 20;
  // The unit of mapping in expandable segments of the large pool.
  uint64_t large_page_bytes = uint64_t{20} << 20;
  double collection_threshold = 0;  // of the memory fraction; 0: no collection
  bool waits_to_release = false;    // for the device, in collect() and release_oversize() (NPU)
  bool expandable = false;
  // The reserved range of an expandable segment, as a multiple of total_bytes.
  double range_factor = 1.125;
  uint64_t range_bytes = 0;  // instead of the factor, unless 0
  Tie tie = Tie::by_creation;
  bool pools_give_back = true;  // an allocation of a private pool, too, has the cache given back
  // Large blocks of expandable segments begin at multiples of it, if there is room (NPU); 0: any.
  uint64_t alignment_bytes = 0;
  reading::Divisions divisions{};

  uint64_t limit_bytes = kNoLimit;   // the memory fraction
  uint64_t device_bytes = kNoLimit;  // what the device can give
  uint64_t total_bytes = 0;          // of the device, for expandable segments

  // The size of the block for a request.
  uint64_t rounded(uint64_t requested) const {
    return reading::rounded_bytes(requested + padding_bytes, divisions);
  }

  // The size of the segment that is made for a block. Requests that fit several times into a
  // segment share it; larger ones have a segment for themselves.
  uint64_t segment_bytes(uint64_t size) const {
    if (size <= kSmallBytes) return kSmallSegmentBytes;
    if (size < std::min(kLeastLargeBytes, large_segment_bytes)) return large_segment_bytes;
    return (size + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
  }

  // Whether the rest of a free block remains free when a block of `size` is taken from it. In the
  // small pool, and while segments expand, any rest does; otherwise only a rest of more than 1 MiB,
  // and nothing is split off for the sizes that `max_split_size_mb` keeps apart.
  bool splits(bool is_small, uint64_t size, uint64_t rest) const {
    if (is_small || expandable) return rest >= kMinBlockBytes;
    return size < max_split_bytes && rest > kSmallBytes;
  }

  // Collection needs a memory fraction, whose part is the threshold.
  bool collects() const { return collection_threshold > 0 && limit_bytes != kNoLimit; }
};

// The memory that an allocator has at the start of a simulation.
//
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
