// What a look at all objects needs, within one call that keeps the GIL.
#pragma once

#include <utility>

#include "python/registers.h"

namespace pytracer {

// Before CPython 3.12, making an object may start the collector, which runs finalizers of the program.
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

// The frames and the handled exceptions of all threads. Made before all objects are looked at, because
// an audit hook of the program may run.
struct ThreadsNow {
  const py::module_ sys = py::module_::import("sys");
  const py::dict frames = sys.attr("_current_frames")();
  const py::dict exceptions = sys.attr("_current_exceptions")();
};

// Whether more than `most` other threads run a backward pass. It replaces gradients, and releases what its
// graph keeps, without the GIL and without a lock that we could take. No code of the program runs here, so the
// answer is true as long as the GIL is held. A pass that code in C++ began is not seen.
inline bool are_others_in_backward(size_t most) {
  const NoCollection guard;
  size_t found = 0;
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; state != nullptr; state = PyThreadState_Next(state)) {
    if (state == PyThreadState_Get()) continue;
    bool is_found = false;
    for (PyFrameObject* frame = PyThreadState_GetFrame(state); frame != nullptr;) {
      PyCodeObject* const code = PyFrame_GetCode(frame);  // an attribute would call audit hooks of the program
      is_found |= PyUnicode_CompareWithASCIIString(code->co_name, "_engine_run_backward") == 0;  // torch.autograd.graph's
      Py_DECREF(code);
      Py_DECREF(std::exchange(frame, PyFrame_GetBack(frame)));
    }
    found += is_found;
  }
  return found > most;
}

}  // namespace pytracer
