// All objects of Python's collector, for a look within one call that keeps the GIL.
//
// They are borrowed: valid as long as the GIL is held, and no code of the program runs. A list of them, as
// gc.get_objects() makes, would refer to each tuple that another thread is making, in which CPython then
// raises SystemError. And to refer to all objects, and to end that, takes two walks more.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <new>
#include <vector>

namespace pytracer {

class ObjectsNow {
 public:
  // `wanted`: types whose objects are looked for; null: none. The collector must not run meanwhile. Throws
  // std::bad_alloc.
  explicit ObjectsNow(const std::vector<PyTypeObject*>& wanted) : instances(wanted.size()), wanted_(wanted) {
#if PY_VERSION_HEX >= 0x030c0000
    PyUnstable_GC_VisitObjects(
        [](PyObject* object, void* self) { return static_cast<ObjectsNow*>(self)->add(object) ? 1 : 0; }, this);
#else
    // The generations of CPython 3.11 are rings of what lies before each object. Their heads lie side by side, and
    // a new list is the last object of the first.
    struct Head {
      Head* next;
      uintptr_t previous;
    };
    struct Generation {
      Head head;
      int threshold, count;
    };
    constexpr int kGenerations = 3;
    PyObject* const last = PyList_New(0);
    if (last == nullptr) throw std::bad_alloc();
    const auto* const first = reinterpret_cast<Generation*>((reinterpret_cast<Head*>(last) - 1)->next);
    Py_DECREF(last);
    for (const Generation* each = first; each < first + kGenerations; ++each) {
      for (Head* one = each->head.next; one != &each->head; one = one->next) {
        if (!add(reinterpret_cast<PyObject*>(one + 1))) break;
      }
    }
#endif
    if (!is_whole_) throw std::bad_alloc();
  }

  std::vector<PyObject*> all;
  std::vector<std::vector<PyObject*>> instances;  // for each type, those that no earlier type has

 private:
  bool add(PyObject* object) noexcept {
    try {
      all.push_back(object);
      const size_t index = index_of(Py_TYPE(object));
      if (index < instances.size()) instances[index].push_back(object);
    } catch (const std::bad_alloc&) {
      is_whole_ = false;
    }
    return is_whole_;
  }

  size_t index_of(PyTypeObject* type) noexcept {
    Known& known = known_[reinterpret_cast<uintptr_t>(type) / alignof(PyTypeObject) % known_.size()];
    if (known.type != type) {
      known = {type, 0};
      while (known.index < wanted_.size() &&
             (wanted_[known.index] == nullptr || !PyType_IsSubtype(type, wanted_[known.index]))) {
        ++known.index;
      }
    }
    return known.index;
  }

  struct Known {
    PyTypeObject* type;
    size_t index;  // of the type that it inherits from
  };
  const std::vector<PyTypeObject*> wanted_;
  std::array<Known, 1021> known_{};
  bool is_whole_ = true;
};

}  // namespace pytracer
