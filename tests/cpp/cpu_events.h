// Reports events as hooks do: by default, the CPU's.
#pragma once

#include <utility>

#include "record/recorder.h"
#include "session/session.h"

namespace pytracer {

// A session that records, with stacks.
struct Started : Session {
  explicit Started(SessionOptions options) : Session(std::move(options)) {
    Recorder::instance().set_walking(true);
    start();
  }
};

inline void record(uint8_t action, uint64_t address, uint64_t size = 0,
                   int16_t device = PYTRACER_CPU_DEVICE) {
  pytracer_event event{};
  event.action = action;
  event.address = address;
  event.size = size;
  event.device = device;
  Recorder::record(&event);
}
inline void alloc(uint64_t address, uint64_t size = 8) { record(PYTRACER_ALLOC, address, size); }
inline void release(uint64_t address) { record(PYTRACER_FREE_COMPLETED, address); }

}  // namespace pytracer
