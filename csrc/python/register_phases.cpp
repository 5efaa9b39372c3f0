#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "python/registers.h"
#include "record/phases.h"

namespace py = pybind11;

namespace pytracer {

void register_phases(py::module_& core) {
  // The GIL is kept: the mutex is held for microseconds.
  core.def("enter_phase", [](const std::string& name) {
    const Phases::Entered entered = Phases::instance().enter(name);
    return py::make_tuple(entered.entry, entered.phase);
  });
  core.def("is_entered", [](uint64_t entry) { return Phases::instance().is_entered(entry); });
  core.def(
      "phase_path",
      [](int64_t number) {
        const Phases& phases = Phases::instance();
        const size_t known = phases.numbers();
        if (number < 0 || static_cast<uint64_t>(number) > known) {
          throw py::index_error("no event has the phase " + std::to_string(number) +
                                ": this process has entered " +
                                (known == 0 ? "none" : "1 to " + std::to_string(known)) +
                                ", and 0 stands for none");
        }
        py::list path;
        for (auto phase = static_cast<uint16_t>(number); phase != 0; phase = phases.parent(phase)) {
          const std::string_view name = phases.name(phase);
          path.append(py::bytes(name.data(), name.size()));
        }
        path.attr("reverse")();
        return path;
      },
      py::arg("number"));
  core.def("leave_phase", [](uint64_t entry) { Phases::instance().leave(entry); });
}

}  // namespace pytracer
