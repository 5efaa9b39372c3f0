// The keys of a snapshot's dicts, numbered as the texts that they are interned as.
//
// A key that a file uses is compared by its number, never by its text.
#pragma once

#include "value.h"

namespace pytracer::reading {

enum Key : uint32_t {
  kNoKey,               kAction,              kAddr,                kDeviceFree,
  kSize,                kStream,              kTimeUs,              kFrames,
  kForwardFrames,       kForwardExact,        kForwardPhase,        kAutogradNode,
  kPoolId,              kCompileContext,      kUserMetadata,        kFilename,
  kName,                kLine,                kState,               kRequestedSize,
  kHistory,             kRealSize,            kAddress,             kBlocks,
  kTotalSize,           kDevice,              kSegmentType,         kSegmentPoolId,
  kIsExpandable,        kAllocatedSize,       kActiveSize,          kSegments,
  kDeviceTraces,        kAllocatorSettings,   kExternalAnnotations, kPytracer,
  kCategory,            kCategoryRule,        kOwner,               kOwners,
  kHolder,              kHostSegments,        kHostTraces,          kBirthStep,
  kAllocation,          kKeys
};

constexpr const char* kKeyNames[kKeys] = {
    "",                     "action",               "addr",                 "device_free",
    "size",                 "stream",               "time_us",              "frames",
    "forward_frames",       "forward_exact",        "forward_phase",        "autograd_node",
    "pool_id",              "compile_context",      "user_metadata",        "filename",
    "name",                 "line",                 "state",                "requested_size",
    "history",              "real_size",            "address",              "blocks",
    "total_size",           "device",               "segment_type",         "segment_pool_id",
    "is_expandable",        "allocated_size",       "active_size",          "segments",
    "device_traces",        "allocator_settings",   "external_annotations", "pytracer",
    "category",             "category_rule",        "owner",                "owners",
    "holder",               "host_segments",        "host_traces",          "birth_step",
    "allocation"};

// The number of a key of a dict; kKeys if the key is no text. May be any text's number.
inline uint32_t key_number(Value key) { return key.is(Kind::string) ? key.index() : kKeys; }

// The value of `key` in a dict's items; none if the key is missing.
inline Value value_at(const Heap::Items& items, Key key) {
  for (size_t i = 0; i < items.size(); i += 2) {
    if (key_number(items[i]) == key) return items[i + 1];
  }
  return Value();
}

}  // namespace pytracer::reading
