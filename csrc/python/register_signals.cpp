#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <set>

#include "python/registers.h"
#include "support/wake_signal.h"

namespace py = pybind11;

namespace pytracer {

void register_signals(py::module_& core) {
  core.def("wake_event", &wake_event);
  core.def("has_wake_event", &has_wake_event);
  core.def("wake", &wake);
  core.def("watch_signal", &watch_signal, py::arg("number"));
  core.def("unwatch_signal", &unwatch_signal, py::arg("number"));
  core.def("has_signal_handler", &has_signal_handler, py::arg("number"));
  core.def("take_signals", [] {
    std::set<int> numbers;
    uint64_t signals = take_signals();
    for (int number = 1; signals != 0; ++number, signals >>= 1) {
      if (signals & 1) numbers.insert(number);
    }
    return numbers;
  });
}

}  // namespace pytracer
