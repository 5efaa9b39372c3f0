#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "support/python/gil.h"
#include "python/registers.h"
#include "record/node_types.h"
#include "record/recorder.h"
#include "session/hook_loader.h"
#include "session/registry.h"

namespace py = pybind11;

namespace pytracer {

namespace {

PyObject* g_oom_observer = nullptr;  // under the GIL; never released

// A pytracer_oom_fn. Hooks must not take the GIL under a device's lock, because a thread that has
// the GIL may wait for that lock. Here no lock is held: the CPU allocator has none, ours are free
// once the event is recorded, and torch takes the GIL in the same place for other devices' observers.
void report_oom(uint64_t requested_size, uint64_t total_size, uint64_t free_size) noexcept {
  if (!GilScopes::begin()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  if (g_oom_observer != nullptr) {
    const py::error_scope keep_pending_error;
    PyObject* result = PyObject_CallFunction(g_oom_observer, "iKKK", PYTRACER_CPU_DEVICE,
                                             static_cast<unsigned long long>(requested_size),
                                             static_cast<unsigned long long>(total_size),
                                             static_cast<unsigned long long>(free_size));
    if (result == nullptr) PyErr_WriteUnraisable(g_oom_observer);
    Py_XDECREF(result);
  }
  PyGILState_Release(state);
  GilScopes::end();
}

}  // namespace

void register_hooks(py::module_& core) {
  core.def(
      "attach_hook", [](const std::string& path) { return attach_hook(path, &report_oom); },
      py::arg("path"), py::call_guard<OutsideGil>());
  core.def("attach_autograd", &attach_autograd, py::arg("path"), py::call_guard<OutsideGil>());
  core.def("watch_autograd_threads", &watch_autograd_threads, py::call_guard<OutsideGil>());
  core.def("running_node", []() -> py::object {
    const pytracer_autograd* autograd = attached_autograd();
    pytracer_autograd_state state{};
    if (autograd != nullptr) autograd->read(&state);
    if (state.node == nullptr) return py::none();
    NodeTypes& types = NodeTypes::instance();
    return py::make_tuple(types.name(types.number_of(state.node_type)), state.node_thread,
                          state.node_sequence);
  });
  core.def(
      "observe_oom", [](py::object observer) { g_oom_observer = observer.release().ptr(); },
      py::arg("observer"));
  core.def(
      "record_oom",
      [](int device, uint64_t requested_size, uint64_t free_size) {
        OutsideGil outside;
        Registry::instance().record_oom(device, requested_size, free_size);
      },
      py::arg("device"), py::arg("requested_size"), py::arg("free_size"),
      "Records an out-of-memory that the device's allocator did not report.");
}

}  // namespace pytracer
