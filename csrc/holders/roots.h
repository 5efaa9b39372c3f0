// What keeps objects alive by itself: variables of running functions and of modules, exceptions that
// are being handled, and the data of threads.
//
// Addresses are kept, no references: the roots are valid as long as the GIL is held and no code of the
// program runs.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frames/cpython_frames.h"

namespace pytracer {

// What has no name: the value of an expression, and what code that runs has.
constexpr const char* kTemporary = "a temporary value";

// What no Python object and no code in Python refers to: C++ keeps it.
constexpr const char* kOnlyNative = "no Python tensor";

// Whether an object needs no variable or value to be a root. The state of a thread has a context.
inline bool is_always_root(PyObject* object) {
  return PyModule_Check(object) || PyType_Check(object) || PyContext_CheckExact(object);
}

struct Folders {
  std::vector<std::string> hidden;   // of functions whose variables are no roots
  std::vector<std::string> unnamed;  // of functions whose variables have no name
};

class Roots {
 public:
  // `frames` and `exceptions`: of all threads, by sys._current_frames() and _current_exceptions().
  // Throws std::bad_alloc.
  Roots(PyObject* frames, PyObject* exceptions, const Folders& folders);

  template <class Use>
  void for_each(Use use) const {
    for (const auto& [object, root] : found_) use(object);
  }
  bool contains(PyObject* object) const { return found_.count(object) != 0; }
  // Whether only code that runs has an object: as the value of an expression, or as below.
  bool is_unnamed(PyObject* object) const;
  // Whether nothing but functions whose variables have no name keep an object. So it is unnamed, too.
  bool is_of_unnamed(PyObject* object) const {
    const auto place = found_.find(object);
    return place != found_.end() && place->second.kind == Kind::unnamed;
  }
  // Whether code in Python that runs may have an object as the value of an expression. It has not if its
  // address is nowhere on the stack of values of any frame.
  bool may_be_value(PyObject* object) const { return values_.count(object) != 0; }
  // How often the known frames refer to an object.
  size_t references(PyObject* object) const;
  struct Name {
    std::string path;   // "losses"; of a module or class "", because its dict has the names
    std::string owner;  // "main()", "module train"; "": nobody

    std::string text() const;  // "losses of main()"
  };
  // The name of a root, or of a module or class.
  Name name_of(PyObject* object) const;
  // Whether an object is the dict of a module.
  bool is_namespace(PyObject* object) const {
    const auto place = found_.find(object);
    return place != found_.end() && place->second.kind == Kind::module;
  }

 private:
  // Of two roots of the same object, the one of the later kind counts, and the outer frame.
  enum class Kind : uint8_t { unnamed, exception, thread, temporary, variable, module };
  struct Root {
    Kind kind;
    int slot;            // of a variable
    PyCodeObject* code;  // of the function
    size_t references;
  };

  void add(PyObject* object, const Root& root);
  void add_frame(PythonFrame* frame, bool is_named);

  std::unordered_map<PyObject*, Root> found_;
  std::unordered_set<PyObject*> values_;  // or what looks like one
};

}  // namespace pytracer
