// Reports the segments and statistics of a caching allocator to a pytracer_state_sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hook_abi.h"
#include "trace_entry.h"

namespace {

PYTRACER_FIELD(owner_private_pool_id);
PYTRACER_FIELD(num_device_alloc);  // torch_npu 2.7.1 lacks it, and num_device_free

// `blocks` is scratch memory that all segments share.
template <class Segment>
void report_segment(const Segment& from, std::vector<pytracer_block>& blocks,
                    const pytracer_state_sink& sink) {
  blocks.clear();
  for (const auto& block : from.blocks) {
    const uint64_t state = block.allocated ? PYTRACER_ACTIVE_ALLOCATED
                           : block.active  ? PYTRACER_ACTIVE_PENDING_FREE
                                           : PYTRACER_INACTIVE;
    blocks.push_back({static_cast<uint64_t>(block.size),
                      static_cast<uint64_t>(block.requested_size), state});
  }
  pytracer_segment segment{};
  segment.address = static_cast<uint64_t>(from.address);
  segment.stream = reinterpret_cast<uint64_t>(from.stream);
  if constexpr (has_owner_private_pool_id<Segment>::value) {
    segment.pool_high = from.owner_private_pool_id.first;
    segment.pool_low = from.owner_private_pool_id.second;
  }
  segment.total_size = static_cast<uint64_t>(from.total_size);
  segment.allocated_size = static_cast<uint64_t>(from.allocated_size);
  segment.active_size = static_cast<uint64_t>(from.active_size);
  segment.requested_size = static_cast<uint64_t>(from.requested_size);
  segment.block_count = blocks.size();
  segment.blocks = blocks.data();
  segment.device = static_cast<int16_t>(from.device);
  segment.is_large = from.is_large;
  segment.is_expandable = from.is_expandable;
  sink.segment(sink.context, &segment);
}

template <class Stats>
void report_statistics(const Stats& stats, double memory_fraction, int16_t device,
                       const pytracer_state_sink& sink) {
  constexpr size_t kAll = 0;  // StatType::AGGREGATE
  pytracer_statistics statistics{};
  statistics.peak_reserved_bytes = static_cast<uint64_t>(stats.reserved_bytes[kAll].peak);
  statistics.peak_allocated_bytes = static_cast<uint64_t>(stats.allocated_bytes[kAll].peak);
  if constexpr (has_num_device_alloc<Stats>::value) {
    statistics.device_allocs = static_cast<uint64_t>(stats.num_device_alloc);
    statistics.device_frees = static_cast<uint64_t>(stats.num_device_free);
  }
  statistics.retries = static_cast<uint64_t>(stats.num_alloc_retries);
  statistics.ooms = static_cast<uint64_t>(stats.num_ooms);
  statistics.memory_fraction = memory_fraction;
  statistics.device = device;
  sink.statistics(sink.context, &statistics);
}

}  // namespace
