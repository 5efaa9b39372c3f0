// Containers of Python that hold at most so many items: what they keep does not grow for ever.
//
// Contracts 2 of search.h. Only objects of Python's own types are looked at.
#pragma once

#include <string>
#include <vector>

#include "holders/search.h"

namespace pytracer {

struct BoundedContainer {
  PyObject* object;   // borrowed
  Py_ssize_t length;  // how many items it has
  Py_ssize_t bound;   // how many it has at most
};

// Returns the youngest deques, caches of functools and lists that have a bound. A list has one if it was
// made with None in all places. `only_lists`: without the others.
std::vector<BoundedContainer> bounded_containers(PyObject* objects, bool only_lists);

}  // namespace pytracer
