// What the CUDA and the NPU hook share: a tracker in torch's caching allocator that reports each
// of its events, and the allocator's state on demand.
//
// 1. The tracker runs under the allocator's device lock, on whatever thread allocates. It calls no
//    torch function, allocates nothing and takes no lock but the recorder's own.
// 2. torch copies the tracker for each device, and marks every snapshot() with an event whose
//    device is always 0, one for each device in order. In our own snapshot() they are counted; in
//    anyone else's, a copy knows its device from the events before. (A copy that has seen none has
//    nothing to mark.)
// 3. There is no way to detach: all state is leaked on purpose, and `enabled` switches.
// 4. No exception leaves: torch's are turned into messages.
//
// `Api` names what differs: Allocator, TraceEntry, kDeviceType, kHasClock, kVariable, kActions,
// take_snapshot(), memory_fraction() and report_settings().
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "../hook.h"

// torch's structures grow with every release: has_FIELD<Struct> says whether this one has it.
#define PYTRACER_FIELD(field)                  \
  template <class T, class = void>             \
  struct has_##field : std::false_type {};     \
  template <class T>                           \
  struct has_##field<T, std::void_t<decltype(std::declval<const T&>().field)>> : std::true_type {}

namespace {

PYTRACER_FIELD(mempool_);
PYTRACER_FIELD(compile_context_);
PYTRACER_FIELD(user_metadata_);
PYTRACER_FIELD(internal_metadata_);
PYTRACER_FIELD(owner_private_pool_id);

template <class Api>
class Hook {
 public:
  static int32_t attach(pytracer_record_fn record, const uint32_t* enabled, char* message,
                        size_t size) noexcept {
    return guarded(message, size, [&]() -> int32_t {
      static std::mutex once;
      std::lock_guard lock(once);
      if (allocator_ != nullptr) return PYTRACER_DONE;
      auto* allocator = static_cast<typename Api::Allocator*>(c10::GetAllocator(Api::kDeviceType));
      if (!allocator->initialized()) return PYTRACER_NOT_READY;  // attaching would be lost
      record_ = record;
      enabled_ = enabled;
      try {
        allocator->attachAllocatorTraceTracker(Tracker{});
      } catch (const c10::Error&) {
        std::snprintf(message, size,
                      "the allocator in use, %s, tells nobody of its events; use torch's own: no "
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
      struct Counting {
        Counting() { next_marker_ = 0; }
        ~Counting() { next_marker_ = -1; }
      };
      int16_t devices = 0;
      const auto info = [&] {
        const Counting counting;
        auto taken = Api::take_snapshot(*allocator_);
        devices = next_marker_;
        return taken;
      }();
      std::vector<pytracer_block> blocks;
      for (const auto& segment : info.segments) report_segment(segment, blocks, *sink);
      Api::report_settings(info, *sink);
      for (int16_t device = 0; device < devices; ++device) report_statistics(device, *sink);
      return PYTRACER_DONE;
    });
  }

 private:
  class Tracker {
   public:
    void operator()(const typename Api::TraceEntry& entry) const noexcept {
      if (entry.action_ != Api::TraceEntry::SNAPSHOT) {
        device_ = static_cast<int16_t>(entry.device_);
      } else if (next_marker_ >= 0) {
        device_ = next_marker_++;
      }
      if (__atomic_load_n(enabled_, __ATOMIC_ACQUIRE) != 0) report_event(entry, device_);
    }

   private:
    mutable int16_t device_ = -1;  // written and read under the device's lock
  };

  // Apart, so that a hook that is off saves no registers.
  __attribute__((noinline)) static void report_event(const typename Api::TraceEntry& entry,
                                                     int16_t device) noexcept {
    using Entry = typename Api::TraceEntry;
    const auto action = static_cast<size_t>(entry.action_);
    if (device < 0 || action >= std::size(Api::kActions)) return;
    pytracer_event event;  // each of its fields is set
    event.address = static_cast<uint64_t>(entry.addr_);
    event.size = static_cast<uint64_t>(entry.size_);
    event.stream = reinterpret_cast<uint64_t>(entry.stream_);
    event.pool_high = event.pool_low = 0;
    if constexpr (has_mempool_<Entry>::value) {
      event.pool_high = entry.mempool_.first;
      event.pool_low = entry.mempool_.second;
    }
    event.autograd_sequence = 0;
    event.ticks = 0;
    if constexpr (Api::kHasClock) event.ticks = static_cast<int64_t>(entry.time_.approx_t_);
    event.labels = nullptr;
    event.device = device;
    event.action = Api::kActions[action];
    const char* compile_context = "";
    const char* user_metadata = "";
    const char* internal_metadata = "";
    if constexpr (has_compile_context_<Entry>::value) {
      const std::string& text = entry.compile_context_;
      const bool is_unset = text.size() == 3 && std::memcmp(text.data(), "N/A", 3) == 0;
      if (!is_unset) compile_context = text.c_str();
    }
    if constexpr (has_user_metadata_<Entry>::value) user_metadata = entry.user_metadata_.c_str();
    if constexpr (has_internal_metadata_<Entry>::value) {
      internal_metadata = entry.internal_metadata_.c_str();
    }
    const pytracer_labels labels{compile_context, user_metadata, internal_metadata};
    if (*compile_context || *user_metadata || *internal_metadata) event.labels = &labels;
    record_(&event);
  }

  template <class Segment>
  static void report_segment(const Segment& from, std::vector<pytracer_block>& blocks,
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

  static void report_statistics(int16_t device, const pytracer_state_sink& sink) {
    const auto stats = allocator_->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    constexpr size_t kAll = 0;  // StatType::AGGREGATE
    pytracer_statistics statistics{};
    statistics.peak_reserved_bytes = static_cast<uint64_t>(stats.reserved_bytes[kAll].peak);
    statistics.peak_allocated_bytes = static_cast<uint64_t>(stats.allocated_bytes[kAll].peak);
    statistics.device_allocs = static_cast<uint64_t>(stats.num_device_alloc);
    statistics.device_frees = static_cast<uint64_t>(stats.num_device_free);
    statistics.retries = static_cast<uint64_t>(stats.num_alloc_retries);
    statistics.ooms = static_cast<uint64_t>(stats.num_ooms);
    statistics.memory_fraction = Api::memory_fraction(*allocator_, device);
    statistics.device = device;
    sink.statistics(sink.context, &statistics);
  }

  // Runs `work`, for its result or PYTRACER_FAILED and what went wrong in `message`.
  template <class Work>
  static int32_t guarded(char* message, size_t size, Work work) noexcept {
    try {
      return work();
    } catch (const std::exception& error) {
      const std::string text = error.what();  // torch's have a C++ stack trace from line 2 on
      std::snprintf(message, size, "%s", text.substr(0, text.find('\n')).c_str());
    } catch (...) {
      std::snprintf(message, size, "an unknown C++ exception");
    }
    return PYTRACER_FAILED;
  }

  // Written before the tracker is attached, which the devices' locks publish.
  static inline pytracer_record_fn record_ = nullptr;
  static inline const uint32_t* enabled_ = nullptr;
  static inline typename Api::Allocator* allocator_ = nullptr;  // null: not attached
  static inline thread_local int16_t next_marker_ = -1;  // device of the next; -1: not our snapshot
};

}  // namespace
