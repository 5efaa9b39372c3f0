// All objects of Python's collector, for a look within one call that keeps the GIL.
//
// They are borrowed: valid as long as the GIL is held, and no code of the program runs. A list of them, as
// gc.get_objects() makes, would refer to each tuple that another thread is making, in which CPython then
// raises SystemError. And to refer to all objects, and to end that, takes two walks more.
#pragma once

#include <Python.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace pytracer {

class ObjectsNow {
 public:
  // `wanted`: types whose objects are looked for; something else has none. The collector must not run meanwhile.
  // Throws std::bad_alloc.
  explicit ObjectsNow(const std::vector<PyObject*>& wanted) : instances(wanted.size()), wanted_(wanted) {
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
    auto& [known, index] = known_[reinterpret_cast<uintptr_t>(type) / alignof(PyTypeObject) % known_.size()];
    if (std::exchange(known, type) == type) return index;
    const auto is_base = [type](PyObject* each) {
      return PyType_Check(each) && PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(each)) != 0;
    };
    return index = std::find_if(wanted_.begin(), wanted_.end(), is_base) - wanted_.begin();
  }

  const std::vector<PyObject*> wanted_;
  std::array<std::pair<PyTypeObject*, size_t>, 1021> known_{};  // which of them a type inherits from
  bool is_whole_ = true;
};

}  // namespace pytracer
