// Columns as numpy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <cstdlib>

#include "reading/column.h"

namespace pytracer::reading {

// Hands the column's values over to numpy.
template <class T>
pybind11::array_t<T> to_array(Column<T>& column) {
  const auto size = static_cast<pybind11::ssize_t>(column.size());
  if (size == 0) return pybind11::array_t<T>(0);
  T* values = column.release();
  const pybind11::capsule owner(values, [](void* data) { std::free(data); });
  return pybind11::array_t<T>(size, values, owner);
}

}  // namespace pytracer::reading
