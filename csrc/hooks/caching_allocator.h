// The part that the CUDA hook and the NPU hook share: a tracker in torch's caching allocator that
// reports each event, and the allocator's state on demand.
//
// 1. The tracker runs under the allocator's device lock, on whatever thread allocates. It calls no
//    torch function, allocates nothing and takes no lock but the recorder's own.
// 2. torch copies the tracker for each device, and marks every snapshot() with one event a device, in
//    the order of devices. These events name device 0, all of them. So in our own snapshot() they are
//    counted. In other snapshots each copy of the tracker knows its device from earlier events; one that
//    has seen none has nothing to mark.
// 3. torch cannot detach a tracker: all state is leaked on purpose, and `enabled` switches it.
// 4. No exception leaves a hook: torch's exceptions become messages.
//
// `Api` names what differs: Allocator, TraceEntry, kDeviceType, kHasClock, kVariable,
// take_snapshot(), memory_fraction() and report_settings().
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <vector>

#include "guarded.h"
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
                           : block.active  ? PYTRACER_ACTIVE_PENDING_FREE : PYTRACER_INACTIVE;
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

template <class Api>
class Hook {
 public:
  static int32_t attach(pytracer_record_fn record, const uint32_t* enabled, char* message,
                        size_t size) noexcept {
    return guarded(message, size, [&]() -> int32_t {
      if (allocator_ != nullptr) return PYTRACER_DONE;
      auto* allocator = static_cast<typename Api::Allocator*>(c10::GetAllocator(Api::kDeviceType));
      if (!allocator->initialized()) return PYTRACER_NOT_READY;  // torch would drop the tracker
      record_ = record;
      enabled_ = enabled;
      try {
        allocator->attachAllocatorTraceTracker(Tracker{});
      } catch (const c10::Error&) {
        std::snprintf(message, size,
                      "the allocator in use, %s, reports no events; use torch's own: no "
                      "\"backend\" in %s, no pluggable allocator",
                      allocator->name().c_str(), Api::kVariable);
        return PYTRACER_FAILED;
      }
      allocator_ = allocator;
      return PYTRACER_DONE;
    });
  }

  static int32_t snapshot(const pytracer_state_sink* sink, char* message, size_t size) noexcept {
    return guarded(message, size, [&] {
      struct MarkerCount {
        MarkerCount() { next_marker_ = 0; }
        ~MarkerCount() { next_marker_ = -1; }
      };
      int16_t devices = 0;
      const auto info = [&] {
        const MarkerCount counting;
        auto state = Api::take_snapshot(*allocator_);
        devices = next_marker_;
        return state;
      }();
      std::vector<pytracer_block> blocks;
      for (const auto& segment : info.segments) report_segment(segment, blocks, *sink);
      Api::report_settings(info, *sink);
      for (int16_t device = 0; device < devices; ++device) {
        report_statistics(allocator_->getDeviceStats(static_cast<c10::DeviceIndex>(device)),
                          Api::memory_fraction(*allocator_, device), device, *sink);
      }
      return PYTRACER_DONE;
    });
  }

 private:
  class Tracker {
   public:
    void operator()(const typename Api::TraceEntry& entry) const noexcept {
      if (entry.action_ == Api::TraceEntry::SNAPSHOT) return mark(entry);
      device_ = static_cast<int16_t>(entry.device_);
      if (is_enabled()) report_event(entry, device_);
    }

   private:
    // Not inlined: it calls for the thread's variable, so that any other event would save registers.
    __attribute__((noinline, cold)) void mark(
        const typename Api::TraceEntry& entry) const noexcept {
      if (next_marker_ >= 0) device_ = next_marker_++;
      if (is_enabled()) report_event(entry, device_);
    }

    mutable int16_t device_ = -1;  // written and read under the device's lock
  };

  static bool is_enabled() noexcept { return __atomic_load_n(enabled_, __ATOMIC_ACQUIRE) != 0; }

  // Not inlined, so that a disabled hook saves no registers.
  __attribute__((noinline)) static void report_event(const typename Api::TraceEntry& entry,
                                                     int16_t device) noexcept {
    report_entry<Api::kHasClock>(entry, device, record_);
  }

  // Written before the tracker is attached; the devices' locks publish them to other threads.
  static inline pytracer_record_fn record_ = nullptr;
  static inline const uint32_t* enabled_ = nullptr;
  static inline typename Api::Allocator* allocator_ = nullptr;  // null: not attached
  // The device of the next marker in our own snapshot() on this thread; -1: no such call.
  static inline thread_local int16_t next_marker_ = -1;
};

}  // namespace
