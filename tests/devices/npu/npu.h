// What the files of libascendcl share. Their names and signatures are CANN's, from the headers that
// torch_npu brings; what they do not define becomes a stub (make_libraries.py).
#pragma once

#include <acl/acl.h>
#include <acl/acl_rt.h>

#include <vector>

#include "../control.h"

namespace simulated::npu {

// The devices as CANN shows them: an ordinal counts the visible ones, the model's number counts
// all.
inline const std::vector<int>& visible() {
  static const auto* devices = new std::vector<int>(visible_devices("ASCEND_RT_VISIBLE_DEVICES"));
  return *devices;
}

inline bool is_ordinal(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(visible().size());
}

// The model's number. What is no ordinal is taken for the first device.
inline int device_of(int ordinal) { return is_ordinal(ordinal) ? visible()[ordinal] : 0; }

// The model's number of the device that the thread has selected, or the first.
int current_device();

// Cores of each kind, and whatever else is asked for as a number.
constexpr int kCores = 24;

}  // namespace simulated::npu
