#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <unordered_map>
#include <vector>

#include "holders/search.h"
#include "python/registers.h"
#include "record/code_watch.h"

namespace py = pybind11;

namespace pytracer {

namespace {

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

// All objects of the collector.
//
// The list refers to all containers, and so to each tuple that another thread is making.
// CPython raises SystemError in that thread if it finds such a reference when it resizes the tuple.
// So the list exists within one call of a function below alone, which runs no Python code and keeps
// the GIL meanwhile.
py::object all_objects() {
  const py::object get_objects = py::module_::import("gc").attr("get_objects");
  auto all = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(get_objects.ptr()));
  if (!all) throw py::error_already_set();
  if (!PyList_Check(all.ptr())) throw py::type_error("gc.get_objects() returned no list");
  return all;
}

py::list live_instances(const py::args& kinds) {
  std::vector<PyTypeObject*> wanted;
  for (const py::handle& kind : kinds) {
    if (!PyType_Check(kind.ptr())) throw py::type_error("not a type");
    wanted.push_back(reinterpret_cast<PyTypeObject*>(kind.ptr()));
  }
  std::unordered_map<PyTypeObject*, bool> known;
  py::list found;
  const NoCollection guard;
  const py::object all = all_objects();
  const Py_ssize_t count = PyList_GET_SIZE(all.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const object = PyList_GET_ITEM(all.ptr(), i);
    PyTypeObject* const type = Py_TYPE(object);
    const auto [place, is_new] = known.try_emplace(type, false);
    if (is_new) {
      place->second = std::any_of(wanted.begin(), wanted.end(), [type](PyTypeObject* kind) {
        return PyType_IsSubtype(type, kind) != 0;
      });
    }
    if (place->second && PyList_Append(found.ptr(), object) != 0) throw py::error_already_set();
  }
  return found;
}

// Who holds each of `objects`, as in holders/search.h. Nobody else may refer to the list.
std::vector<std::string> holders_of(const py::list& objects,
                                    const std::vector<std::string>& hidden,
                                    const std::vector<std::string>& unnamed, double seconds) {
  if (!kVariablesAreKnown) return std::vector<std::string>(objects.size());
  const NoCollection guard;
  // Before the list of all objects is made, because an audit hook of the program may run.
  const py::module_ sys = py::module_::import("sys");
  const py::dict frames = sys.attr("_current_frames")();
  const py::dict exceptions = sys.attr("_current_exceptions")();
  const py::object all = all_objects();
  const auto time = std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  return find_holders(objects.ptr(), all.ptr(), frames.ptr(), exceptions.ptr(), {hidden, unnamed},
                      {time});
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
  core.def("live_instances", &live_instances);
  core.def("call_when_seen", &call_when_seen, py::arg("code"), py::arg("call"));
  core.def("holders_of", &holders_of, py::arg("objects"), py::arg("hidden"),
           py::arg("unnamed"), py::arg("seconds"));
}

}  // namespace pytracer
