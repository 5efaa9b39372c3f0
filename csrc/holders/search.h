// Who keeps objects alive: a search from the objects to the roots, against the references.
//
// 1. All objects of the collector are asked for what they refer to (tp_traverse), in passes. Whatever
//    refers to a wanted object is wanted from then on. A pass costs some 50 ns an object. It ends as soon as
//    all references to what is wanted were seen: variables of functions that run need none.
// 2. The GIL is held throughout. No code of the program runs, no reference is kept, and nothing is
//    compared by value.
// 3. The search ends when each target has a root, when nothing new is found, or by its bounds.
#pragma once

#include <algorithm>
#include <array>
#include <ctime>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "holders/roots.h"

namespace pytracer {

// The end of a text of objects that only each other hold.
constexpr const char* kGarbage = ", which gc.collect() would free";

// All objects of Python's collector, for a look within one call that keeps the GIL.
//
// They are borrowed: valid as long as the GIL is held, and no code of the program runs. A list of them, as
// gc.get_objects() makes, would refer to each tuple that another thread is making, in which CPython then
// raises SystemError. And to refer to all objects, and to end that, takes two walks more.
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

// The processor time of the calling thread since the clock was made: on a busy machine, a search gets as
// far as on an idle one. A thread that hardly runs, as in a container with a quota or while memory is
// swapped, counts a fifth of the time that passes, because it has the GIL meanwhile.
class ThreadClock {
 public:
  double seconds() const noexcept {
    return std::max(now(CLOCK_THREAD_CPUTIME_ID) - begin_, (now(CLOCK_MONOTONIC) - wall_begin_) / kWallPart);
  }

 private:
  static constexpr double kWallPart = 5;

  static double now(clockid_t clock) noexcept {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double begin_ = now(CLOCK_THREAD_CPUTIME_ID);
  double wall_begin_ = now(CLOCK_MONOTONIC);
};

struct SearchBounds {
  double seconds;           // of a ThreadClock
  int depth = 8;            // how many holders a path has at most
  size_t holders = 50'000;  // how many are wanted at most, and two for each target
  bool wants_opaque = false;  // one pass goes to the end in any case, for `opaque` below
};

struct FoundHolders {
  // Of each target: "losses[41] of main()"; "a temporary value": code that runs; "no Python tensor": only
  // C++; "": nobody was found.
  std::vector<std::string> texts;
  bool is_whole;  // the search was not cut off by its time
  // Objects whose values only C++ sees, and who holds them: "exported[3] (inside a PyCapsule) of main()".
  std::vector<std::pair<PyObject*, std::string>> opaque{};
};

// The name of a capsule of DLPack that nobody has taken the tensor of.
constexpr const char* kTensorCapsule = "dltensor";

// Returns who holds each target; nobody if !frames_are_known(). Throws std::bad_alloc.
//
// `objects`: all of the collector, borrowed. `frames`, `exceptions` and `folders`: as for Roots. The collector must not
// run meanwhile.
FoundHolders find_holders(const std::vector<PyObject*>& targets, const std::vector<PyObject*>& objects,
                          PyObject* frames, PyObject* exceptions, const Folders& folders, const SearchBounds& bounds);

}  // namespace pytracer
