// The actions of events. The values are indices into pytracer.ACTIONS.
#pragma once

#include <cstdint>

namespace pytracer::reading {

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

}  // namespace pytracer::reading
