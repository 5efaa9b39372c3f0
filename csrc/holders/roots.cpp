#include "holders/roots.h"

#include <algorithm>

#include "holders/references.h"

namespace pytracer {

namespace {

bool is_in(PyCodeObject* code, const std::vector<std::string>& folders) {
  return std::any_of(folders.begin(), folders.end(), [code](const std::string& folder) {
    return text_of(code->co_filename, folder.size()).rfind(folder, 0) == 0;
  });
}

// Whether code is that of a comprehension, which is a function itself before Python 3.12.
bool is_comprehension(PyCodeObject* code) {
  const std::string name = text_of(code->co_name);
  return name == "<listcomp>" || name == "<dictcomp>" || name == "<setcomp>";
}

// Whether torch has generated the code, as torch.compile does. The names in it say nothing.
bool is_generated(PyCodeObject* code) {
  const std::string file = text_of(code->co_filename, 1000);
  return file.rfind("<eval_with_key>", 0) == 0 || file.find("/torchinductor_") != std::string::npos;
}

// The name of the function whose code an expression is.
std::string function_of_expression(PyCodeObject* code) {
  const std::string name = function_name(code);
  if (!is_comprehension(code)) return name + "()";
  const size_t outer = name.rfind(".<locals>.");
  return outer == std::string::npos ? "a comprehension" : name.substr(0, outer) + "()";
}

}  // namespace

Roots::Roots(PyObject* frames, PyObject* exceptions, const Folders& folders) {
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(exceptions, &position, &key, &value) != 0;) {
    const bool is_triple = PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 3;  // before Python 3.12
    add(is_triple ? PyTuple_GET_ITEM(value, 1) : value, {Kind::exception, 0, nullptr, 0});
  }
  if (PyObject* data = PyThreadState_GetDict()) add(data, {Kind::thread, 0, nullptr, 0});
  for (Py_ssize_t position = 0; PyDict_Next(frames, &position, &key, &value) != 0;) {
    PythonFrame* frame = PyFrame_Check(value) ? frame_of_object(value) : nullptr;
    for (; frame != nullptr; frame = outer_frame(frame)) {
      if (is_shim(frame) || is_incomplete(frame)) continue;  // such a frame may have no globals yet
      const int count = variable_count(frame), all = count + most_temporaries(frame);
      for (int place = count; place < all; ++place) values_.insert(value_at(frame, place));
      if (is_in(code_object(frame), folders.hidden)) continue;
      add_frame(frame, !is_in(code_object(frame), folders.unnamed));
    }
  }
  PyObject* const modules = PyImport_GetModuleDict();  // borrowed
  for (Py_ssize_t position = 0; modules != nullptr && PyDict_Next(modules, &position, &key, &value) != 0;) {
    if (PyModule_Check(value)) add(PyModule_GetDict(value), {Kind::module, 0, nullptr, 0});
  }
}

void Roots::add(PyObject* object, const Root& root) {
  if (object == nullptr || object == Py_None) return;
  if ((root.kind == Kind::temporary || root.kind == Kind::unnamed) && is_always_root(object)) return;
  const auto [place, is_new] = found_.try_emplace(object, root);
  const size_t references = (is_new ? 0 : place->second.references) + root.references;
  if (root.kind >= place->second.kind) place->second = root;
  place->second.references = references;
}

void Roots::add_frame(PythonFrame* frame, bool is_named) {
  PyCodeObject* const code = code_object(frame);
  const int count = variable_count(frame);
  int all = count + temporary_count(frame);
  // What a comprehension builds is its first value.
  if (all == count && most_temporaries(frame) > 0 && is_comprehension(code)) ++all;
  for (int slot = 0; slot < all; ++slot) {
    const Kind kind = slot < count ? Kind::variable : Kind::temporary;
    add(value_at(frame, slot), {is_named ? kind : Kind::unnamed, slot, code, is_counted(frame, slot)});
  }
  PyObject* const globals = frame->f_globals;
  if (globals != nullptr && PyDict_Check(globals)) add(globals, {Kind::module, 0, nullptr, 0});
}

bool Roots::is_unnamed(PyObject* object) const {
  const auto place = found_.find(object);
  if (place == found_.end()) return false;
  const Kind kind = place->second.kind;
  return kind == Kind::unnamed || (kind == Kind::temporary && !PyExceptionInstance_Check(object));
}

size_t Roots::references(PyObject* object) const {
  const auto place = found_.find(object);
  return place == found_.end() ? 0 : place->second.references;
}

Roots::Name Roots::name_of(PyObject* object) const {
  const auto place = found_.find(object);
  if (place == found_.end()) {
    if (!PyType_Check(object)) return {"", "module " + module_name(PyModule_GetDict(object))};
    return {"", "class " + class_name(reinterpret_cast<PyTypeObject*>(object))};
  }
  const Root& root = place->second;
  switch (root.kind) {
    case Kind::variable:
      if (is_generated(root.code)) return {"", "compiled code"};
      return {variable_name(root.code, root.slot), function_name(root.code) + "()"};
    case Kind::temporary: {
      const std::string function = function_of_expression(root.code);
      if (PyExceptionInstance_Check(object)) return {"an exception", function};  // mostly handled
      const bool is_built = PyList_CheckExact(object) || PyDict_CheckExact(object);
      return {is_built ? "an unnamed " + class_name(Py_TYPE(object)) : kTemporary, function};
    }
    case Kind::unnamed: return {"", kTemporary};
    case Kind::exception: return {"the handled exception", ""};
    case Kind::thread: return {"the thread's own data", ""};
    case Kind::module: break;
  }
  const std::string name = module_name(object);
  return {"", name == "?" ? "a namespace" : "module " + name};
}

std::string Roots::Name::text() const {
  if (path.empty()) return owner;
  return (path[0] == '.' ? path.substr(1) : path) + (owner.empty() ? "" : " of " + owner);
}

}  // namespace pytracer
