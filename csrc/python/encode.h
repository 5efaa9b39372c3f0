// Encodes Python values as pickle fragments, for what the Python side adds to a snapshot.
#pragma once

#include <pybind11/pybind11.h>

#include "snapshot/snapshot.h"

namespace pytracer {

// With the GIL. Raises TypeError for values that a snapshot cannot hold. `generated_code`: for a file
// and a line, a list of (filename, name, line), innermost first. `file_names`: for a file, the name that it gets.
SnapshotExtras encode_extras(const pybind11::dict& metadata, const pybind11::dict& devices,
                             const pybind11::dict& generated_code,
                             const pybind11::dict& file_names);

}  // namespace pytracer
