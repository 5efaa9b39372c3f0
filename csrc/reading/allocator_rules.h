// How a caching allocator sizes blocks: c10/cuda/CUDACachingAllocator.cpp, and torch_npu's like it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace pytracer::reading {

constexpr uint64_t kMinBlockBytes = 512;
constexpr uint64_t kSmallBytes = 1 << 20;  // what is larger is of the large pool

struct AllocatorRules {
  bool has_pools = true;       // false: a segment for each block (the CPU in our files)
  bool are_known = true;       // false: blocks are there that these rules do not make
  bool may_expand = false;     // segments that expand may be switched on, at times
  bool aligns = false;         // then a block may begin within free memory (NPU)
  uint64_t padding_bytes = 0;  // added to each request (NPU)
  bool is_padding_known = true;  // false: or nothing is added
  uint64_t max_split_bytes = UINT64_MAX;
  // By the request's power of two, from 1 MiB on: into how many parts it is divided; 0: it is not.
  std::array<uint64_t, 16> divisions{};

  // The least that a block for so much has, which is below 2^62.
  uint64_t rounded(uint64_t requested) const {
    if (!has_pools) return requested;
    const uint64_t size = std::max(requested, kMinBlockBytes);
    const int power = 63 - __builtin_clzll(size);
    const uint64_t parts = divisions[static_cast<size_t>(std::clamp(power - 20, 0, 15))];
    uint64_t unit = kMinBlockBytes;
    if (parts > 1 && parts <= (size - 1) / kMinBlockBytes) {
      unit = (uint64_t{1} << power) >> (63 - __builtin_clzll(parts));
    }
    return (size + unit - 1) / unit * unit;
  }
};

}  // namespace pytracer::reading
