// All objects of Python's collector, for a look within one call that keeps the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace pytracer {

// Before CPython 3.12, making a list may start the collector, which runs finalizers of the program.
class NoCollection {
 public:
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  const bool was_enabled_;
};

// The list refers to all containers, and so to each tuple that another thread is making.
// CPython raises SystemError in that thread if it finds such a reference when it resizes the tuple.
// So the list exists within one call that runs no Python code and keeps the GIL meanwhile.
inline pybind11::object all_objects() {
  namespace py = pybind11;
  const py::object get_objects = py::module_::import("gc").attr("get_objects");
  auto all = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(get_objects.ptr()));
  if (!all) throw py::error_already_set();
  if (!PyList_Check(all.ptr())) throw py::type_error("gc.get_objects() returned no list");
  return all;
}

// The frames and the handled exceptions of all threads. Made before the list of all objects, because an
// audit hook of the program may run.
struct ThreadsNow {
  const pybind11::module_ sys = pybind11::module_::import("sys");
  const pybind11::dict frames = sys.attr("_current_frames")();
  const pybind11::dict exceptions = sys.attr("_current_exceptions")();
};

// Whether a backward pass runs that is not the caller's. It replaces gradients, and releases what its graph
// keeps, without the GIL and without a lock that we could take. A pass that code in C++ began is not seen.
inline bool is_other_in_backward(const pybind11::dict& frames, bool is_caller_in_backward) {
  namespace py = pybind11;
  size_t threads = 0;
  for (const auto& [thread, innermost] : frames) {
    auto frame = py::reinterpret_borrow<py::object>(innermost);
    while (frame) {
      auto* const known = reinterpret_cast<PyFrameObject*>(frame.ptr());
      const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(known)));
      PyObject* const name = reinterpret_cast<PyCodeObject*>(code.ptr())->co_name;
      if (PyUnicode_CompareWithASCIIString(name, "_engine_run_backward") == 0) {  // torch.autograd.graph's
        ++threads;
        break;
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(known)));
    }
  }
  return threads > (is_caller_in_backward ? 1 : 0);
}

}  // namespace pytracer
