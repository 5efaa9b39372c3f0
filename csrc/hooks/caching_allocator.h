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

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "allocator_state_report.h"
#include "hook_abi.h"
#include "trace_entry.h"

namespace {

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

  // Returns the result of `work`; if it throws, PYTRACER_FAILED with the reason in `message`.
  template <class Work>
  static int32_t guarded(char* message, size_t size, Work work) noexcept {
    try {
      return work();
    } catch (const std::exception& error) {
      const std::string text = error.what();  // torch appends a C++ stack trace from line 2 on
      std::snprintf(message, size, "%s", text.substr(0, text.find('\n')).c_str());
    } catch (...) {
      std::snprintf(message, size, "an unknown C++ exception");
    }
    return PYTRACER_FAILED;
  }

  // Written before the tracker is attached; the devices' locks publish them to other threads.
  static inline pytracer_record_fn record_ = nullptr;
  static inline const uint32_t* enabled_ = nullptr;
  static inline typename Api::Allocator* allocator_ = nullptr;  // null: not attached
  // The device of the next marker in our own snapshot() on this thread; -1: no such call.
  static inline thread_local int16_t next_marker_ = -1;
};

}  // namespace
