// How one Python object refers to another, as the Python expression that leads from one to the other.
//
// No code of the program runs, and nothing is compared by value: objects are found by address alone.
// The GIL is held, and the collector must not run.
#pragma once

#include <string>
#include <unordered_map>

#include "frames/cpython_frames.h"

namespace pytracer {

// At most `most` characters of a string, with replacements for what is no Unicode; "?": not a string.
std::string text_of(PyObject* string, size_t most = 60);

// The name of a class without its module, such as "Trainer" or "list".
std::string class_name(PyTypeObject* type);

// The name of the variable in a slot of a frame's local variables.
std::string variable_name(PyCodeObject* code, int slot);

// The name of a function, such as "Trainer.step"; before Python 3.11 without its class.
std::string function_name(PyCodeObject* code);

// The slot of a frame's local variables that refers to an object; -1: none does.
int variable_of(PythonFrame* frame, PyObject* held);

// The frame in a frame object, or in a generator or coroutine that waits; null: there is none.
PythonFrame* frame_in(PyObject* holder);

// The name of a module, by the dict of its variables; "?": it has none.
std::string module_name(PyObject* variables);

// The variable of a module that was imported; null: it was not, or has none. Borrowed.
PyObject* variable_of_module(const char* module, const char* name);

// An attribute in the dict of an object, borrowed; null: there is none. No code of the program runs.
PyObject* own_attribute(PyObject* object, const char* name);

// The name of the variable that has a value in a context of contextvars; "a value": none has.
std::string context_variable(PyObject* context, PyObject* value);

// Writes how objects refer to each other, and remembers what it looked for last.
class ReferenceTexts {
 public:
  // Adds to `path` how `holder` refers to `held`: "['eval']", "[3]", ".cache", or " (inside a deque, 2 of at most
  // 9)" for a container of Python's own types that holds at most so many items. `is_attributes`: whether `holder` is
  // the dict of attributes of what the path leads to; set to whether `held` is the one of `holder`, which then adds
  // nothing.
  // First for each path: begin().
  void append(std::string& path, PyObject* holder, PyObject* held, bool& is_attributes);

  void begin() noexcept {
    are_of_threads_ = false;
    queue_ = nullptr;
  }

 private:
  bool append_dict(std::string& path, PyObject* dict, PyObject* held, bool is_attributes);
  bool append_index(std::string& path, PyObject* holder, PyObject* const* items, Py_ssize_t size, PyObject* held);

  // ", 2 of at most 9"; "": a container has no bound.
  std::string bound_of(PyObject* container);
  // How many items a list has that was made with None in all places, which bounds them; 0: it was not.
  Py_ssize_t filled(PyObject* list);

  // Where to look first in a large container: what is looked for next is often the next or previous item.
  Py_ssize_t& next_of(PyObject* container, Py_ssize_t size) {
    constexpr Py_ssize_t kFew = 16;
    return size > kFew ? next_[container] : first_ = 0;
  }

  PyObject* const deque_type_ = variable_of_module("collections", "deque");
  PyObject* const queue_type_ = variable_of_module("queue", "Queue");
  PyObject* const cache_type_ = variable_of_module("functools", "_lru_cache_wrapper");
  bool are_of_threads_ = false;  // the path leads to the dicts of a threading.local
  PyObject* queue_ = nullptr;    // that the path leads to: its deque has no bound of its own
  std::unordered_map<PyObject*, Py_ssize_t> filled_;  // by list
  std::unordered_map<PyObject*, Py_ssize_t> next_;
  Py_ssize_t first_ = 0;
  // How many more items are looked at, for all texts together. Then an item is "[…]". Attributes are few.
  int64_t items_left_ = 5'000'000;
};

}  // namespace pytracer
