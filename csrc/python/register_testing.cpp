#include <chrono>
#include <cstdint>

#include "python/registers.h"
#include "record/clock.h"
#include "record/recorder.h"
#include "support/error.h"

namespace pytracer {

namespace {

pytracer_event event_of(int device, uint64_t address, uint64_t size) {
  pytracer_event event{};
  event.device = static_cast<int16_t>(device);
  event.address = address;
  event.size = size;
  if (device != PYTRACER_CPU_DEVICE) event.ticks = now_ticks();  // an accelerator stamps its events
  return event;
}

}  // namespace

void register_testing(py::module_& core) {
  py::module_ testing = core.def_submodule("testing", "Events on demand, for tests and benchmarks.");
  testing.def("record", [](uint8_t action, uint64_t address, uint64_t size, int device) {
    if (action >= PYTRACER_ACTION_COUNT) throw Error("no such action");
    pytracer_event event = event_of(device, address, size);
    event.action = action;
    py::gil_scoped_release release;
    Recorder::record(&event);
  }, py::arg("action"), py::arg("address"), py::arg("size"), py::arg("device") = -1);
  testing.def("record_free", [](uint64_t address, uint64_t size, int device) {
    pytracer_event event = event_of(device, address, size);
    py::gil_scoped_release release;
    for (const uint8_t action : {PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED}) {
      event.action = action;
      Recorder::record(&event);
    }
  }, py::arg("address"), py::arg("size"), py::arg("device"),
      "Records a free that completes at once, as an accelerator's hook would.");
  testing.def("record_pairs", [](uint64_t pairs, uint64_t address, int device) {
    pytracer_event event = event_of(device, address, 0);
    py::gil_scoped_release release;
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < pairs; ++i) {
      event.action = PYTRACER_ALLOC;
      event.size = 512;
      Recorder::record(&event);
      if (device == PYTRACER_CPU_DEVICE) {
        event.size = 0;  // the CPU allocator does not know the size of a free
      } else {
        event.action = PYTRACER_FREE_REQUESTED;
        Recorder::record(&event);
      }
      event.action = PYTRACER_FREE_COMPLETED;
      Recorder::record(&event);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }, py::arg("pairs"), py::arg("address"), py::arg("device") = -1,
      "Records pairs of an allocation and its free, as the device's hook would, without the GIL. "
      "Returns the seconds that this took.");
}

}  // namespace pytracer
