// What the files of libcudart share.
#pragma once

#include "../memory.h"
#include "devices.h"

namespace simulated::cuda {

// The ordinal that the thread has selected.
int current_ordinal();
inline int current_device() { return device_of(current_ordinal()); }

// Notes an error for cudaGetLastError(), and returns it.
int fail(int error);
int result(Outcome outcome);

}  // namespace simulated::cuda
