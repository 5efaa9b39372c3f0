// Columns as numpy arrays.
#pragma once

#include <pybind11/numpy.h>

#include <cstdlib>
#include <tuple>

#include "reading/column.h"

namespace pytracer::reading {

template <class T>
using Input = pybind11::array_t<T, pybind11::array::c_style>;

// Arrays that Python gives, which stay as long as this does.
class Inputs {
 public:
  // Has `values` point to those of an array with this length.
  template <class T>
  void add(const T*& values, const pybind11::handle& array, size_t length) {
    const auto kept = array.cast<Input<T>>();
    if (static_cast<size_t>(kept.size()) != length) throw pybind11::value_error("columns of different lengths");
    values = kept.data();
    kept_.append(kept);
  }

 private:
  pybind11::list kept_;
};

// Hands the column's values over to numpy.
template <class T>
pybind11::array_t<T> to_array(Column<T>& column) {
  const auto size = static_cast<pybind11::ssize_t>(column.size());
  if (size == 0) return pybind11::array_t<T>(0);
  T* values = column.release();
  const pybind11::capsule owner(values, [](void* data) { std::free(data); });
  return pybind11::array_t<T>(size, values, owner);
}

// The arrays of a struct whose columns_of() ties its columns together.
template <class Columns>
pybind11::tuple to_arrays(Columns& columns) {
  return std::apply([](auto&... column) { return pybind11::make_tuple(to_array(column)...); },
                    Columns::columns_of(columns));
}

}  // namespace pytracer::reading
