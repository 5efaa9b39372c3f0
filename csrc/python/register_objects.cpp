#include <pybind11/pybind11.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "python/registers.h"

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

// The collector's list refers to all containers, and so to each tuple that another thread is making.
// CPython raises SystemError in that thread if it finds such a reference when it resizes the tuple.
// So the list exists within this call alone, which runs no Python code and keeps the GIL meanwhile.
py::list live_instances(const py::args& kinds) {
  std::vector<PyTypeObject*> wanted;
  for (const py::handle& kind : kinds) {
    if (!PyType_Check(kind.ptr())) throw py::type_error("not a type");
    wanted.push_back(reinterpret_cast<PyTypeObject*>(kind.ptr()));
  }
  const py::object get_objects = py::module_::import("gc").attr("get_objects");
  std::unordered_map<PyTypeObject*, bool> known;
  py::list found;
  const NoCollection guard;
  const auto all = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(get_objects.ptr()));
  if (!all) throw py::error_already_set();
  if (!PyList_Check(all.ptr())) throw py::type_error("gc.get_objects() returned no list");
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

}  // namespace

void register_objects(py::module_& core) { core.def("live_instances", &live_instances); }

}  // namespace pytracer
