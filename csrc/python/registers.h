// The parts of the module `pytracer._core`; _core.pyi documents them.
#pragma once

#include <pybind11/pybind11.h>

namespace pytracer {

void register_boxes(pybind11::module_& core);
void register_errors();
void register_objects(pybind11::module_& core);
void register_tensors(pybind11::module_& core);
void register_owners(pybind11::module_& core);
void register_view(pybind11::module_& core);
void register_session(pybind11::module_& core);
void register_phases(pybind11::module_& core);
void register_hooks(pybind11::module_& core);
void register_signals(pybind11::module_& core);
void register_walking(pybind11::module_& core);
void register_testing(pybind11::module_& core);

}  // namespace pytracer
