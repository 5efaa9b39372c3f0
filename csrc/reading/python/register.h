// The parts of the module _reader. Only files of this folder know pybind11; the reader does not.
#pragma once

#include <pybind11/pybind11.h>

namespace pytracer::reading {

void register_read(pybind11::module_& m);
void register_replay(pybind11::module_& m);
void register_simulate(pybind11::module_& m);  // in simulator/python/

}  // namespace pytracer::reading
