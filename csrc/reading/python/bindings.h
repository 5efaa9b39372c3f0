// What the parts of the module _reader share. Only files of this folder know pybind11; the reader does not.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdlib>

#include "reading/column.h"
#include "reading/watch.h"
#include "support/python/gil.h"

namespace py = pybind11;

namespace pytracer::reading {

void register_simulate(py::module_& m);  // in simulator/python/

template <class T>
using Input = py::array_t<T, py::array::c_style>;

// Arrays that Python gives, which stay as long as this does.
class Inputs {
 public:
  // Has `values` point to those of an array with this length.
  template <class T>
  void add(const T*& values, const py::handle& array, size_t length) {
    const auto kept = array.cast<Input<T>>();
    if (static_cast<size_t>(kept.size()) != length) throw py::value_error("columns of different lengths");
    values = kept.data();
    kept_.append(kept);
  }
  // The same for some arrays of a dict, whose names come in the order of the columns.
  template <class... T>
  void add(const py::dict& arrays, size_t length, const char* const (&names)[sizeof...(T)], const T*&... values) {
    const char* const* name = names;
    (add(values, arrays[*name++], length), ...);
  }

 private:
  py::list kept_;
};

// Hands the column's values over to numpy.
template <class T>
py::array_t<T> to_array(Column<T>& column) {
  const auto size = static_cast<py::ssize_t>(column.size());
  if (size == 0) return py::array_t<T>(0);
  T* values = column.release();
  const py::capsule owner(values, [](void* data) { std::free(data); });
  return py::array_t<T>(size, values, owner);
}

// The arrays of a struct whose columns_of() ties its columns together.
template <class Columns>
py::tuple to_arrays(Columns& columns) {
  return std::apply([](auto&... column) { return py::make_tuple(to_array(column)...); },
                    Columns::columns_of(columns));
}

// The Watch that asks Python: for signals, and for the memory that the work may take.
class PythonWatch final : public Watch {
 public:
  // `scope` is that of the call that does the work. `allowed_bytes()` returns how much memory the work
  // may take; see update_bound().
  explicit PythonWatch(const GilScope& scope, py::object allowed_bytes = py::none())
      : scope_(scope), allowed_bytes_(std::move(allowed_bytes)) {}

  // At most every kPause, lets Python handle signals and other threads run. With or without the GIL.
  void check_signals() override {
    if (!scope_ || Clock::now() < next_) return;
    const py::gil_scoped_acquire gil;
    { const py::gil_scoped_release others_run; }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    next_ = Clock::now() + kPause;
  }
  void check_memory(uint64_t bytes) override {
    if (bytes <= allowed_) return;
    const std::string allowed = std::to_string(allowed_);
    throw ReadError(ReadError::Kind::too_large, "more than " + allowed + " bytes of memory");
  }
  // Asks Python for the bound on memory, which grows with the bytes that were read. With the GIL.
  void update_bound() { allowed_ = allowed_bytes_().cast<uint64_t>(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPause{20};

  const GilScope& scope_;
  py::object allowed_bytes_;
  uint64_t allowed_ = 0;
  Clock::time_point next_;
};

}  // namespace pytracer::reading
