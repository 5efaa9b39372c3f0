#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "frames/frame_walk.h"
#include "holders/containers.h"
#include "holders/search.h"
#include "python/collector.h"
#include "python/registers.h"
#include "record/code_watch.h"

namespace pytracer {

namespace {

// Weak references to the objects of these types: tuples of the index of the type, the id, the reference.
py::list live_references(const py::args& kinds) {
  std::vector<PyTypeObject*> wanted;
  for (const py::handle& kind : kinds) {
    if (!PyType_Check(kind.ptr())) throw py::type_error("not a type");
    wanted.push_back(reinterpret_cast<PyTypeObject*>(kind.ptr()));
  }
  std::unordered_map<PyTypeObject*, size_t> known;  // the index of the type
  py::list found;
  const NoCollection guard;
  const py::object all = all_objects();
  const Py_ssize_t count = PyList_GET_SIZE(all.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const object = PyList_GET_ITEM(all.ptr(), i);
    PyTypeObject* const type = Py_TYPE(object);
    const auto [place, is_new] = known.try_emplace(type, wanted.size());
    if (is_new) {
      const auto first = std::find_if(wanted.begin(), wanted.end(), [type](PyTypeObject* kind) {
        return PyType_IsSubtype(type, kind) != 0;
      });
      place->second = static_cast<size_t>(first - wanted.begin());
    }
    if (place->second == wanted.size()) continue;
    const auto reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr));
    if (reference) {
      const auto number = py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(object));
      found.append(py::make_tuple(place->second, number, reference));
    } else {
      PyErr_Clear();  // a class without weak references
    }
  }
  return found;
}

// Who holds each of `objects`, as in holders/search.h. Nobody else may refer to the list.
std::vector<std::string> holders_of(const py::list& objects, const std::vector<std::string>& hidden,
                                    const std::vector<std::string>& unnamed, double seconds) {
  std::vector<PyObject*> targets;
  for (const py::handle& each : objects) targets.push_back(each.ptr());
  const NoCollection guard;
  const ThreadsNow threads;
  const py::object all = all_objects();
  return find_holders(targets, objects.ptr(), all.ptr(), threads.frames.ptr(), threads.exceptions.ptr(),
                      {hidden, unnamed}, {seconds})
      .texts;
}

// The names of containers that hold at most so many items, and how many they have and may have.
py::list bounded_container_names(bool only_lists, const std::vector<std::string>& hidden, double seconds) {
  py::list found;
  if (!frames_are_known()) return found;
  const NoCollection guard;
  const ThreadsNow threads;
  const py::object all = all_objects();
  const std::vector<BoundedContainer> containers = bounded_containers(all.ptr(), only_lists);
  if (containers.empty()) return found;
  std::vector<PyObject*> targets;
  for (const BoundedContainer& each : containers) targets.push_back(each.object);
  const FoundHolders holders = find_holders(targets, nullptr, all.ptr(), threads.frames.ptr(),
                                            threads.exceptions.ptr(), {hidden, {}}, {seconds});
  for (size_t i = 0; i < containers.size(); ++i) {
    found.append(py::make_tuple(holders.texts[i], containers[i].length, containers[i].bound));
  }
  return found;
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
  core.def("bounded_containers", &bounded_container_names, py::arg("only_lists"), py::arg("hidden"),
           py::arg("seconds"));
}

}  // namespace pytracer
