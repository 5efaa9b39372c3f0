#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "holders/objects.h"
#include "holders/search.h"
#include "python/collector.h"
#include "python/registers.h"
#include "record/code_watch.h"
#include "tensors/model_copy.h"

namespace pytracer {

namespace {

// The ids of the objects of each of these types, and weak references to them.
py::list live_references(const py::args& kinds) {
  std::vector<PyTypeObject*> wanted;
  for (const py::handle& kind : kinds) {
    if (!PyType_Check(kind.ptr())) throw py::type_error("not a type");
    wanted.push_back(reinterpret_cast<PyTypeObject*>(kind.ptr()));
  }
  py::list found;
  const NoCollection guard;
  for (const auto& instances : ObjectsNow(wanted).instances) found.append(references_to(instances));
  return found;
}

// Who holds each of `objects`, as in holders/search.h. Nobody else may refer to the list.
std::vector<std::string> holders_of(const py::list& objects, const std::vector<std::string>& hidden,
                                    const std::vector<std::string>& unnamed, double seconds) {
  std::vector<PyObject*> targets;
  for (const py::handle& each : objects) targets.push_back(each.ptr());
  const NoCollection guard;
  const ThreadsNow threads;
  return find_holders(targets, objects.ptr(), ObjectsNow({}).all, threads.frames.ptr(), threads.exceptions.ptr(),
                      {hidden, unnamed}, {seconds})
      .texts;
}

PyObject* g_call = nullptr;  // what call_when_seen() was given last; never destroyed

// Has the main thread call `call` soon after an event whose stack has this code object, once.
void call_when_seen(const py::object& code, const py::object& call) {
  Py_XSETREF(g_call, call.inc_ref().ptr());
  CodeWatch::start(code.ptr(), []() noexcept {
    Py_AddPendingCall(
        [](void*) {
          PyObject* const result = PyObject_CallNoArgs(g_call);
          Py_XDECREF(result);
          return result != nullptr ? 0 : -1;  // an interrupt of the user
        },
        nullptr);
  });
}

}  // namespace

void register_objects(py::module_& core) {
  core.def("live_references", &live_references);
  core.def("call_when_seen", &call_when_seen, py::arg("code"), py::arg("call"));
  core.def("holders_of", &holders_of, py::arg("objects"), py::arg("hidden"), py::arg("unnamed"),
           py::arg("seconds"));
}

}  // namespace pytracer
