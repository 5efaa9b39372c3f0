#include "holders/references.h"

#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace pytracer {

namespace {

constexpr int kMaxTuple = 4;  // elements of a tuple that is a key
constexpr const char* kSomeItem = "[\xE2\x80\xA6]";
constexpr Py_ssize_t kMostItems = 10'000;  // of a list that may have been made with None in all places
constexpr Py_ssize_t kLeastRoom = 2;       // None at the end of such a list: so many,
constexpr Py_ssize_t kPartOfRoom = 16;     // and this part of its items

std::string key_text(PyObject* key, int nesting = 0) {
  if (PyUnicode_Check(key)) return "'" + text_of(key) + "'";
  if (key == Py_True) return "True";
  if (key == Py_False) return "False";
  if (key == Py_None) return "None";
  if (PyLong_CheckExact(key)) {
    int overflow = 0;
    const long number = PyLong_AsLongAndOverflow(key, &overflow);
    return overflow != 0 ? "..." : std::to_string(number);
  }
  if (PyTuple_CheckExact(key) && nesting < 2 && PyTuple_GET_SIZE(key) <= kMaxTuple) {
    std::string text = "(";
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      text += (i == 0 ? "" : ", ") + key_text(PyTuple_GET_ITEM(key, i), nesting + 1);
    }
    return text + (PyTuple_GET_SIZE(key) == 1 ? ",)" : ")");
  }
  return "<" + class_name(Py_TYPE(key)) + ">";
}

// The attributes that are no members of their types.
const char* known_attribute(PyObject* holder, PyObject* held) {
  if (PyCell_Check(holder)) return ".cell_contents";
  if (PyFunction_Check(holder)) {
    auto* function = reinterpret_cast<PyFunctionObject*>(holder);
    if (held == function->func_closure) return ".__closure__";
    if (held == function->func_defaults) return ".__defaults__";
    if (held == function->func_kwdefaults) return ".__kwdefaults__";
  }
  if (PyMethod_Check(holder)) return held == PyMethod_GET_SELF(holder) ? ".__self__" : ".__func__";
  if (PyCFunction_Check(holder) && held == PyCFunction_GET_SELF(holder)) return ".__self__";
  if (PyExceptionInstance_Check(holder)) {
    auto* error = reinterpret_cast<PyBaseExceptionObject*>(holder);
    if (held == error->traceback) return ".__traceback__";
    if (held == error->context) return ".__context__";
    if (held == error->cause) return ".__cause__";
    if (held == error->args) return ".args";
  }
  return nullptr;
}

bool is_element(PyObject* set, PyObject* object) {
  const auto* const elements = reinterpret_cast<PySetObject*>(set);
  for (Py_ssize_t i = 0; i <= elements->mask; ++i) {
    if (elements->table[i].key == object) return true;
  }
  return false;
}

// Whether objects of a type have other attributes in each thread, as those of threading.local.
bool is_thread_local(PyTypeObject* type) {
  while (type != nullptr && std::strcmp(type->tp_name, "_thread._local") != 0) type = type->tp_base;
  return type != nullptr;
}

// Members of types in C, and __slots__.
const char* member_name(PyObject* holder, PyObject* held) {
  for (PyTypeObject* type = Py_TYPE(holder); type != nullptr; type = type->tp_base) {
    for (PyMemberDef* member = type->tp_members; member != nullptr && member->name; ++member) {
      if (member->type != T_OBJECT && member->type != T_OBJECT_EX) continue;
      char* const place = reinterpret_cast<char*>(holder) + member->offset;
      if (*reinterpret_cast<PyObject**>(place) == held) return member->name;
    }
  }
  return nullptr;
}

bool is_a(PyObject* object, PyObject* type) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type; }

// An integer; 0: it is none, or not positive.
Py_ssize_t count_in(PyObject* value) {
  if (value == nullptr || !PyLong_CheckExact(value)) return 0;
  const Py_ssize_t count = PyLong_AsSsize_t(value);
  PyErr_Clear();
  return std::max<Py_ssize_t>(count, 0);
}

// What functools.lru_cache() says of a cache is code in Python, so its parts are asked: it keeps its
// bound in the closure of `cache_parameters`, and its items in the only dict that is not its own.
std::pair<Py_ssize_t, Py_ssize_t> length_and_bound_of_cache(PyObject* cache) {
  PyObject* const parameters = own_attribute(cache, "cache_parameters");
  if (parameters == nullptr || !PyFunction_Check(parameters)) return {0, 0};
  PyObject* const closure = PyFunction_GET_CLOSURE(parameters);
  Py_ssize_t bound = 0;
  for (Py_ssize_t i = 0; closure != nullptr && i < PyTuple_GET_SIZE(closure); ++i) {
    bound = std::max(bound, count_in(PyCell_GET(PyTuple_GET_ITEM(closure, i))));
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
  return {items.count, bound};
}

bool is_plain(PyObject* item) {
  return PyBool_Check(item) || PyLong_CheckExact(item) || PyFloat_CheckExact(item) || PyUnicode_CheckExact(item) ||
         PyBytes_CheckExact(item);
}

}  // namespace

std::string text_of(PyObject* string, size_t most) {
  if (string == nullptr || !PyUnicode_Check(string)) return "?";
  const auto length = static_cast<size_t>(PyUnicode_GET_LENGTH(string));
  PyObject* part = PyUnicode_Substring(string, 0, static_cast<Py_ssize_t>(most));
  PyObject* bytes = part ? PyUnicode_AsEncodedString(part, "utf-8", "replace") : nullptr;
  std::string text = "?";
  if (bytes != nullptr) text.assign(PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
  Py_XDECREF(bytes);
  Py_XDECREF(part);
  PyErr_Clear();  // there is no memory
  for (char& each : text) {
    if (static_cast<unsigned char>(each) < ' ') each = '?';
  }
  return length > most ? text + "..." : text;
}

std::string class_name(PyTypeObject* type) {
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    return text_of(reinterpret_cast<PyHeapTypeObject*>(type)->ht_qualname);
  }
  const char* const dot = std::strrchr(type->tp_name, '.');
  return dot != nullptr ? dot + 1 : type->tp_name;
}

std::string variable_name(PyCodeObject* code, int slot) {
  return text_of(PyTuple_GET_ITEM(code->co_localsplusnames, slot));
}

std::string function_name(PyCodeObject* code) { return text_of(code->co_qualname, 100); }

int variable_of(PythonFrame* frame, PyObject* held) {
  const int count = variable_count(frame);
  for (int slot = 0; slot < count; ++slot) {
    if (value_at(frame, slot) == held) return slot;
  }
  return -1;
}

PythonFrame* frame_in(PyObject* holder) {
  if (PyFrame_Check(holder)) return frame_of_object(holder);
  const bool is_generator = PyGen_CheckExact(holder) || PyCoro_CheckExact(holder) || PyAsyncGen_CheckExact(holder);
  return is_generator ? frame_of_generator(holder) : nullptr;
}

// Not by PyDict_GetItemString(), which may compare the name with keys of the program.
PyObject* item_of(PyObject* dict, const char* name) {
  PyObject *key, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (PyUnicode_CheckExact(key) && PyUnicode_CompareWithASCIIString(key, name) == 0) return value;
  }
  return nullptr;
}

std::string module_name(PyObject* variables) {
  PyObject* const name = item_of(variables, "__name__");
  return name != nullptr ? text_of(name, 100) : "?";
}

PyObject* variable_of_module(const char* module, const char* name) {
  PyObject* const found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  return found != nullptr && PyModule_Check(found)
             ? PyDict_GetItemString(PyModule_GetDict(found), name) : nullptr;
}

PyObject* own_attribute(PyObject* object, const char* name) {
  PyObject* const attributes = PyObject_GenericGetDict(object, nullptr);
  PyObject* const found = attributes != nullptr ? item_of(attributes, name) : nullptr;
  Py_XDECREF(attributes);  // the object keeps it
  PyErr_Clear();
  return found;
}

std::string context_variable(PyObject* context, PyObject* value) {
  std::string found = "a value";
  PyObject* const items = PyObject_CallMethod(context, "items", nullptr);
  PyObject* const all = items ? PySequence_List(items) : nullptr;
  for (Py_ssize_t i = 0; all != nullptr && i < PyList_GET_SIZE(all); ++i) {
    PyObject* const item = PyList_GET_ITEM(all, i);
    if (PyTuple_GET_ITEM(item, 1) != value) continue;
    PyObject* const name = PyObject_GetAttrString(PyTuple_GET_ITEM(item, 0), "name");
    if (name != nullptr) found = text_of(name);
    Py_XDECREF(name);
  }
  Py_XDECREF(all);
  Py_XDECREF(items);
  PyErr_Clear();  // there is no memory
  return found;
}

bool ReferenceTexts::append_dict(std::string& path, PyObject* dict, PyObject* held, bool is_attributes) {
  PyObject *key, *value;
  Py_ssize_t& next = next_of(dict, PyDict_GET_SIZE(dict));
  Py_ssize_t position = next;
  for (bool is_second = position == 0;; is_second = true) {
    while (PyDict_Next(dict, &position, &key, &value)) {
      if (!is_attributes && --items_left_ < 0) {
        path += kSomeItem;
        return true;
      }
      if (value != held && key != held) continue;
      next = position;
      const bool is_name = is_attributes && PyUnicode_Check(key);
      if (key == held) {
        path += " (a key)";
      } else {
        path += is_name ? "." + text_of(key) : "[" + key_text(key) + "]";
      }
      return true;
    }
    if (is_second) return false;
    position = 0;
  }
}

bool ReferenceTexts::append_index(std::string& path, PyObject* holder, PyObject* const* items,
                                  Py_ssize_t size, PyObject* held) {
  Py_ssize_t& next = next_of(holder, size);
  // Both ways, because the collector may have reversed the order of the objects.
  for (Py_ssize_t above = next, below = next - 1; above < size || below >= 0; ++above, --below) {
    for (const Py_ssize_t index : {above, below}) {
      if (index < 0 || index >= size) continue;
      if (--items_left_ < 0) {
        path += kSomeItem;
        return true;
      }
      if (items[index] != held) continue;
      next = index;
      path += "[" + std::to_string(index) + "]";
      return true;
    }
  }
  return false;
}

std::string ReferenceTexts::bound_of(PyObject* container) {
  std::pair<Py_ssize_t, Py_ssize_t> known{0, 0};  // how many items it has, and at most
  if (PyList_CheckExact(container)) {
    known = {filled(container), PyList_GET_SIZE(container)};
  } else if (is_a(container, cache_type_)) {
    known = length_and_bound_of_cache(container);
  } else if (is_a(container, deque_type_)) {
    PyObject* const most = PyObject_GetAttrString(container, "maxlen");
    known = {PyObject_Length(container), count_in(most)};
    Py_XDECREF(most);
    PyErr_Clear();
    if (known.second == 0 && queue_ != nullptr && own_attribute(queue_, "queue") == container) {
      known.second = count_in(own_attribute(queue_, "maxsize"));
    }
  }
  const auto [length, bound] = known;
  return length > 0 && bound > 0 ? ", " + std::to_string(length) + " of at most " + std::to_string(bound) : "";
}

Py_ssize_t ReferenceTexts::filled(PyObject* list) {
  const Py_ssize_t size = PyList_GET_SIZE(list);
  if (size == 0 || size > kMostItems || PyList_GET_ITEM(list, size - 1) != Py_None) return 0;
  const auto [place, is_new] = filled_.try_emplace(list, 0);
  if (!is_new) return place->second;
  Py_ssize_t first = -1, last = -1, count = 0;
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (PyList_GET_ITEM(list, i) == Py_None) continue;
    if (first < 0) first = i;
    last = i;
    ++count;
  }
  if (count == 0 || last - first >= count || is_plain(PyList_GET_ITEM(list, first))) return 0;
  return place->second = size - 1 - last >= std::max(kLeastRoom, size / kPartOfRoom) ? count : 0;
}

void ReferenceTexts::append(std::string& path, PyObject* holder, PyObject* held, bool& is_attributes) {
  const bool was_attributes = is_attributes;
  const bool are_of_threads = std::exchange(are_of_threads_, is_thread_local(Py_TYPE(holder)));
  is_attributes = are_of_threads && PyDict_Check(holder);  // the dict of the threads' dicts
  if (are_of_threads_) path += " (inside a thread)";
  if (are_of_threads_ || is_attributes) return;
  if (is_a(holder, queue_type_)) queue_ = holder;
  const std::string bound = bound_of(holder);
  if (PyList_Check(holder) && !bound.empty()) {  // the place of an item says nothing
    path += " (inside a list" + bound + ")";
    return;
  }
  if (PyDict_Check(holder) && append_dict(path, holder, held, was_attributes)) return;
  if ((PyList_Check(holder) || PyTuple_Check(holder)) &&
      append_index(path, holder, PySequence_Fast_ITEMS(holder), Py_SIZE(holder), held)) {
    return;
  }
  if (PyAnySet_Check(holder) && is_element(holder, held)) {
    path += " (an element)";
    return;
  }
  if (const char* name = known_attribute(holder, held)) {
    path += name;
    return;
  }
  if (PyModule_Check(holder)) {
    is_attributes = held == PyModule_GetDict(holder);
    if (is_attributes) return;
  }
  if (PyType_Check(holder)) {
    is_attributes = held == reinterpret_cast<PyTypeObject*>(holder)->tp_dict;
    if (is_attributes) return;
  }
  if (const char* name = member_name(holder, held)) {
    is_attributes = std::strcmp(name, "__dict__") == 0;
    if (!is_attributes) path += std::string(".") + name;
    return;
  }
  // This makes the dict of an object that keeps its attributes without one. Nothing else tells their
  // names in all versions of Python.
  if (PyObject* attributes = PyObject_GenericGetDict(holder, nullptr)) {
    is_attributes = attributes == held;
    const bool is_found = is_attributes || append_dict(path, attributes, held, true);
    Py_DECREF(attributes);
    if (is_found) return;
  }
  PyErr_Clear();  // an object without attributes
  path += " (inside a " + class_name(Py_TYPE(holder)) + bound + ")";
}

}  // namespace pytracer
