// The sizes that a caching allocator gives blocks, by the rules of
// c10/cuda/CUDACachingAllocator.cpp, which torch_npu's allocator shares.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pytracer::reading {

// The actions of events. The values are indices into pytracer.ACTIONS.
enum Action : uint8_t {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,  // later actions change no memory
};

constexpr const char* kActionNames[] = {
    "alloc",       "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",   "segment_unmap",  "snapshot",
    "oom",         "workspace_snapshot", "annotate"};

constexpr uint64_t kMinBlockBytes = 512;
constexpr uint64_t kSmallBytes = 1 << 20;  // larger blocks are in the large pool

// Into how many parts each power of two from 1 MiB on is divided; 0: it is not divided.
using Divisions = std::array<uint64_t, 16>;

// The least size of a block for a request, which is below 2^62 bytes.
inline uint64_t rounded_bytes(uint64_t requested, const Divisions& divisions) {
  const uint64_t size = std::max(requested, kMinBlockBytes);
  const int power = 63 - __builtin_clzll(size);
  const uint64_t parts = divisions[static_cast<size_t>(std::clamp(power - 20, 0, 15))];
  uint64_t unit = kMinBlockBytes;
  // Divisions apply only where each part is larger than the smallest block.
  if (parts > 1 && parts <= (size - 1) / kMinBlockBytes) {
    unit = (uint64_t{1} << power) >> (63 - __builtin_clzll(parts));
  }
  return (size + unit - 1) / unit * unit;
}

struct AllocatorRules {
  bool has_pools = true;         // false: each block is a segment (the CPU in pytracer's files)
  bool are_known = true;         // false: the state has blocks that these rules do not allow
  bool may_expand = false;       // expandable segments may have been on for a part of the trace
  bool aligns = false;           // a block may begin in the middle of free memory (NPU)
  uint64_t padding_bytes = 0;    // added to each request (NPU)
  bool is_padding_known = true;  // false: the padding may also be 0
  uint64_t max_split_bytes = UINT64_MAX;
  Divisions divisions{};

  uint64_t rounded(uint64_t requested) const {
    return has_pools ? rounded_bytes(requested, divisions) : requested;
  }
};

}  // namespace pytracer::reading
