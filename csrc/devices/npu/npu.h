// Common declarations of the files of libascendcl. Their names and signatures are CANN's, from the
// headers of torch_npu; functions that they do not define become stubs (libraries.py).
#pragma once

#include <acl/acl.h>
#include <acl/acl_rt.h>

#include <vector>

#include "devices/control.h"

namespace simulated::npu {

// The devices as CANN shows them: ordinals count the visible devices, the model's numbers count all
// devices.
inline const std::vector<int>& visible() {
  static const auto* devices = new std::vector<int>(visible_devices("ASCEND_RT_VISIBLE_DEVICES"));
  return *devices;
}

inline bool is_ordinal(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(visible().size());
}

// Returns the model's number. An invalid ordinal stands for the first device.
inline int device_of(int ordinal) { return is_ordinal(ordinal) ? visible()[ordinal] : 0; }

// The model's number of the device that the thread has selected, or of the first device.
int current_device();

// The number of cores of each kind, and the answer to other queries for a number.
constexpr int kCores = 24;

}  // namespace simulated::npu
