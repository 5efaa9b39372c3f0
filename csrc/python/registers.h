// The parts of the module `pytracer._core`; _core.pyi documents them.
#pragma once

#include <pybind11/pybind11.h>

namespace pytracer {

namespace py = pybind11;

void register_tensors(py::module_& core);
void register_view(py::module_& core);
void register_session(py::module_& core);

}  // namespace pytracer
