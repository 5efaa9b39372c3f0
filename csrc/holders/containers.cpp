#include "holders/containers.h"

#include <algorithm>
#include <unordered_map>

#include "holders/references.h"

namespace pytracer {

namespace {

constexpr size_t kMostContainers = 1000;  // of how many the names are searched at most
constexpr Py_ssize_t kMostItems = 10'000;  // of a list that is looked at
constexpr Py_ssize_t kLeastRoom = 2;       // None at the end of a list with room: so many,
constexpr Py_ssize_t kPartOfRoom = 16;     // and this part of its items

// An integer; 0: it is none, or not positive.
Py_ssize_t count_in(PyObject* value) {
  if (value == nullptr || !PyLong_CheckExact(value)) return 0;
  const Py_ssize_t count = PyLong_AsSsize_t(value);
  PyErr_Clear();
  return std::max<Py_ssize_t>(count, 0);
}

Py_ssize_t bound_of_deque(PyObject* deque) {
  PyObject* const most = PyObject_GetAttrString(deque, "maxlen");
  const Py_ssize_t bound = count_in(most);
  Py_XDECREF(most);
  PyErr_Clear();
  return bound;
}

// What functools.lru_cache() says of a cache is code in Python, so its parts are asked: it keeps its
// bound in the closure of `cache_parameters`, and its items in the only dict that is not its own.
BoundedContainer of_cache(PyObject* cache) {
  BoundedContainer found{cache, 0, 0};
  PyObject* const parameters = own_attribute(cache, "cache_parameters");
  if (parameters == nullptr || !PyFunction_Check(parameters)) return found;
  PyObject* const closure = PyFunction_GET_CLOSURE(parameters);
  for (Py_ssize_t i = 0; closure != nullptr && i < PyTuple_GET_SIZE(closure); ++i) {
    found.bound = std::max(found.bound, count_in(PyCell_GET(PyTuple_GET_ITEM(closure, i))));
  }
  struct Items {
    PyObject* own;
    Py_ssize_t count;
  } items{PyObject_GenericGetDict(cache, nullptr), 0};
  const auto visit = [](PyObject* object, void* data) {
    auto* const known = static_cast<Items*>(data);
    if (PyDict_CheckExact(object) && object != known->own) known->count = PyDict_GET_SIZE(object);
    return 0;
  };
  Py_TYPE(cache)->tp_traverse(cache, visit, &items);
  Py_XDECREF(items.own);
  PyErr_Clear();
  found.length = items.count;
  return found;
}

bool is_plain(PyObject* item) {
  return PyBool_Check(item) || PyLong_CheckExact(item) || PyFloat_CheckExact(item) ||
         PyUnicode_CheckExact(item) || PyBytes_CheckExact(item);
}

// How many items a list has that was made with None in all places; 0: it was not.
Py_ssize_t filled(PyObject* list) {
  const Py_ssize_t size = PyList_GET_SIZE(list);
  if (size == 0 || size > kMostItems || PyList_GET_ITEM(list, size - 1) != Py_None) return 0;
  Py_ssize_t first = -1, last = -1, count = 0;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (PyList_GET_ITEM(list, i) == Py_None) continue;
    if (first < 0) first = i;
    last = i;
    ++count;
  }
  if (count == 0 || last - first >= count || is_plain(PyList_GET_ITEM(list, first))) return 0;
  return size - 1 - last >= std::max(kLeastRoom, size / kPartOfRoom) ? count : 0;
}

}  // namespace

std::vector<BoundedContainer> bounded_containers(PyObject* objects, bool only_lists) {
  PyObject* const deque = only_lists ? nullptr : variable_of_module("collections", "deque");
  PyObject* const queue = only_lists ? nullptr : variable_of_module("queue", "Queue");
  PyObject* const cache = only_lists ? nullptr : variable_of_module("functools", "_lru_cache_wrapper");
  std::vector<PyObject*> candidates;
  std::unordered_map<PyObject*, Py_ssize_t> of_queues;  // the deque of a queue has no bound of its own
  const auto is_a = [](PyObject* object, PyObject* type) {
    return type != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(object)) == type;
  };
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); ++i) {
    PyObject* const object = PyList_GET_ITEM(objects, i);
    if (is_a(object, queue)) {
      PyObject* const items = own_attribute(object, "queue");
      if (items != nullptr) of_queues[items] = count_in(own_attribute(object, "maxsize"));
    } else if (PyList_CheckExact(object) || is_a(object, deque) || is_a(object, cache)) {
      candidates.push_back(object);
    }
  }
  std::vector<BoundedContainer> found;
  for (auto each = candidates.rbegin(); each != candidates.rend() && found.size() < kMostContainers; ++each) {
    BoundedContainer container{*each, 0, 0};
    if (PyList_CheckExact(*each)) {
      container.length = filled(*each);
      container.bound = PyList_GET_SIZE(*each);
    } else if (is_a(*each, cache)) {
      container = of_cache(*each);
    } else {
      container.length = PyObject_Length(*each);
      container.bound = bound_of_deque(*each);
      const auto of_queue = of_queues.find(*each);
      if (container.bound == 0 && of_queue != of_queues.end()) container.bound = of_queue->second;
    }
    if (container.length > 0 && container.bound > 0) found.push_back(container);
  }
  return found;
}

}  // namespace pytracer
