// Reports events of the CPU as its hook does.
#pragma once

#include "record/recorder.h"

namespace pytracer {

inline void record(uint8_t action, uint64_t address, uint64_t size = 0) {
  pytracer_event event{};
  event.action = action;
  event.address = address;
  event.size = size;
  event.device = PYTRACER_CPU_DEVICE;
  Recorder::record(&event);
}
inline void alloc(uint64_t address, uint64_t size = 8) { record(PYTRACER_ALLOC, address, size); }
inline void release(uint64_t address) { record(PYTRACER_FREE_COMPLETED, address); }

}  // namespace pytracer
