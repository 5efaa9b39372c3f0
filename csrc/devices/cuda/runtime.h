// Common declarations of the files of libcudart.
#pragma once

#include "devices/memory.h"
#include "devices.h"

namespace simulated::cuda {

// The ordinal of the device that the thread has selected.
int current_ordinal();
inline int current_device() { return device_of(current_ordinal()); }

// Keeps an error for cudaGetLastError(), and returns it.
int fail(int error);
int result(Outcome outcome);

}  // namespace simulated::cuda
