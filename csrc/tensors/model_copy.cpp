#include "tensors/model_copy.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "holders/references.h"

namespace pytracer {

namespace {

py::object number_of(PyObject* object) {
  return py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(object));
}

// A string as it is, unless it has methods of the program or is no Unicode, which no file can have.
py::str plain_text(PyObject* string) {
  constexpr size_t kMost = 200;
  if (PyUnicode_CheckExact(string) && PyUnicode_AsUTF8(string) != nullptr) {
    return py::reinterpret_borrow<py::str>(string);
  }
  PyErr_Clear();
  return py::str(text_of(string, kMost));
}

constexpr Py_ssize_t kAtOnce = 500;  // parameters and states of an optimizer, without giving up the GIL

}  // namespace

PyObject* referent(PyObject* reference) {
  if (!PyWeakref_Check(reference)) return nullptr;
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(reference, &object) < 0) PyErr_Clear();
  Py_XDECREF(object);  // the GIL is held, so the program still has it
  return object;
#else
  PyObject* const object = PyWeakref_GetObject(reference);
  return object == Py_None ? nullptr : object;
#endif
}

py::list references_to(const std::vector<PyObject*>& objects) {
  py::list found;
  for (PyObject* each : objects) {
    if (const py::object reference = stolen(PyWeakref_NewRef(each, nullptr))) {
      found.append(py::make_tuple(number_of(each), reference));
    }
  }
  return found;
}

py::str short_class_name(PyTypeObject* type) {
  if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
    return plain_text(reinterpret_cast<PyHeapTypeObject*>(type)->ht_name);
  }
  const char* const dot = std::strrchr(type->tp_name, '.');
  return py::str(dot != nullptr ? dot + 1 : type->tp_name);
}

py::object ModelCopy::module(PyObject* reference, const py::dict& steppers) {
  PyObject* const module = referent(reference);
  if (module == nullptr) return py::none();
  py::list submodules;
  PyObject* children = own_attribute(module, "_modules");
  if (children != nullptr && !PyDict_Check(children)) {  // of a script
    children = own_attribute(children, "_python_modules");
  }
  if (children != nullptr && PyDict_Check(children)) {
    PyObject *name, *child;
    for (Py_ssize_t position = 0; PyDict_Next(children, &position, &name, &child) != 0;) {
      if (child == Py_None || !PyUnicode_Check(name)) continue;
      if (const py::object weak = stolen(PyWeakref_NewRef(child, nullptr))) {  // null: its class has none
        submodules.append(py::make_tuple(plain_text(name), number_of(child), weak));
      }
    }
  }
  return py::make_tuple(number_of(module), short_class_name(Py_TYPE(module)),
                        tensors_of(module, "_parameters", TensorRole::parameter, steppers),
                        tensors_of(module, "_buffers", TensorRole::buffer, steppers), submodules);
}

py::dict ModelCopy::tensors_of(PyObject* module, const char* kind, TensorRole role, const py::dict& steppers) {
  py::dict found;
  const auto add = [&](PyObject* name, PyObject* tensor) {
    if (tensor == Py_None || !PyUnicode_Check(name)) return;
    if (!tensors_.is_tensor(tensor)) {
      ++unread_;
      return;
    }
    const std::shared_ptr<TensorCopy> kept = copy(tensor, role);
    if (role == TensorRole::parameter) {
      PyObject* const stepper = PyDict_GetItem(steppers.ptr(), number_of(tensor).ptr());
      read_gradients(tensor, kept, py::reinterpret_borrow<py::object>(stepper != nullptr ? stepper : Py_None));
    }
    found[plain_text(name)] = kept;
  };
  PyObject* const tensors = own_attribute(module, kind);
  if (tensors == nullptr) return found;
  if (PyDict_Check(tensors)) {
    PyObject *name, *tensor;
    for (Py_ssize_t position = 0; PyDict_Next(tensors, &position, &name, &tensor) != 0;) add(name, tensor);
    return found;
  }
  // Of a script, whose tensors C++ has.
  PyObject* const in_torch = own_attribute(tensors, "_c");
  const py::object items = in_torch != nullptr ? stolen(PyObject_CallMethod(in_torch, "items", nullptr)) : py::object();
  if (!items) return found;
  for (Py_ssize_t i = 0; PyList_Check(items.ptr()) && i < PyList_GET_SIZE(items.ptr()); ++i) {
    PyObject* const pair = PyList_GET_ITEM(items.ptr(), i);
    if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) {
      add(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
  }
  made_by_torch_.append(items);  // so that no other tensor gets an id of these
  return found;
}

py::object ModelCopy::optimizer(PyObject* reference, const py::object& thread, Py_ssize_t first_parameter,
                                Py_ssize_t first_state) {
  PyObject* const optimizer = referent(reference);
  if (optimizer == nullptr) return py::none();
  py::list groups, states;
  const Py_ssize_t end = first_parameter + kAtOnce;
  Py_ssize_t parameter = 0;
  PyObject* const all = own_attribute(optimizer, "param_groups");
  for (Py_ssize_t i = 0; all != nullptr && PyList_Check(all) && parameter < end && i < PyList_GET_SIZE(all);
       ++i) {
    PyObject* const group = PyList_GET_ITEM(all, i);
    if (!PyDict_Check(group)) continue;
    TensorCopies parameters;
    const bool is_new = parameter >= first_parameter;
    if (PyObject* const of_group = PyDict_GetItemString(group, "params")) {
      tensors_.for_each_tensor(of_group, [&](PyObject* each) {
        const Py_ssize_t place = parameter++;
        if (place < first_parameter || place >= end) return;
        parameters.push_back(copy(each, TensorRole::parameter));
        read_gradients(each, parameters.back(), thread);
      });
    }
    if (!is_new && parameters.empty()) continue;
    const py::list named = is_new ? named_copies(group, "params") : py::list();
    groups.append(py::make_tuple(i, py::cast(parameters), named));
  }
  PyObject* const state = own_attribute(optimizer, "state");
  Py_ssize_t next_state = parameter < end ? 0 : first_state;
  bool has_more = parameter >= end;
  if (!has_more && state != nullptr && PyDict_Check(state)) {
    const Py_ssize_t last_state = first_state + end - std::max(parameter, first_parameter);
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(state, &position, &key, &value) != 0; ++next_state) {
      if (next_state < first_state) continue;
      has_more = next_state >= last_state;
      if (has_more) break;
      py::list found;
      if (PyDict_Check(value)) {
        found = named_copies(value);
      } else {
        const TensorCopies copies = copies_in(value, TensorRole::optimizer_state);
        if (!copies.empty()) found.append(py::make_tuple("state", py::cast(copies)));
      }
      if (!found.empty()) {
        states.append(py::make_tuple(tensors_.is_tensor(key) ? number_of(key) : py::none(), found));
      }
    }
  }
  return py::make_tuple(number_of(optimizer), short_class_name(Py_TYPE(optimizer)), groups, states,
                        std::min(parameter, end), next_state, has_more);
}

py::list ModelCopy::named_copies(PyObject* dict, const char* without) {
  py::list found;
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(dict, &position, &key, &value) != 0;) {
    const bool is_text = PyUnicode_CheckExact(key);
    if (is_text && PyUnicode_CompareWithASCIIString(key, without) == 0) continue;
    const TensorCopies copies = copies_in(value, TensorRole::optimizer_state);
    if (copies.empty()) continue;
    py::object name = py::str("state");
    if (is_text) name = plain_text(key);
    if (PyLong_CheckExact(key)) name = py::reinterpret_borrow<py::object>(key);
    found.append(py::make_tuple(name, py::cast(copies)));
  }
  return found;
}

TensorCopies ModelCopy::copies_in(PyObject* value, TensorRole role) {
  TensorCopies found;
  tensors_.for_each_tensor(value, [&](PyObject* each) { found.push_back(copy(each, role)); });
  return found;
}

std::shared_ptr<TensorCopy> ModelCopy::copy(PyObject* tensor, TensorRole role) {
  auto kept = std::make_shared<TensorCopy>();
  kept->number = reinterpret_cast<uintptr_t>(tensor);
  read(tensor, kept, kept->parts, role);
  note_use(kept->parts, role);
  return kept;
}

void ModelCopy::note_use(const std::vector<TensorMemory>& parts, TensorRole role) const {
  if (!use_) return;
  for (const TensorMemory& part : parts) use_(part, role);
}

void ModelCopy::read(PyObject* tensor, const std::shared_ptr<TensorCopy>& kept,
                     std::vector<TensorMemory>& parts, std::optional<TensorRole> role) {
  const TensorReader::Result result = tensors_.read(tensor, parts);
  if (result == TensorReader::Result::sparse) {
    sparse_.push_back({py::reinterpret_borrow<py::object>(tensor), kept, &parts, role});
  } else if (result == TensorReader::Result::unknown) {
    ++unread_;
  }
}

void ModelCopy::read_gradients(PyObject* parameter, const std::shared_ptr<TensorCopy>& kept,
                               const py::object& stepper) {
  if (!rule_.is_read) return;
  if (!may_read_gradient(parameter, *kept, stepper)) {
    kept->is_gradient_unread = tensors_.requires_gradient(parameter);
  } else if (tensors_.has_gradient(parameter)) {
    const py::object gradient = tensors_.gradient(parameter);
    if (gradient && tensors_.is_tensor(gradient.ptr())) read(gradient.ptr(), kept, kept->gradient);
  }
  // A property of this name is not asked, because Megatron-FSDP's allocates the gradient.
  PyObject* const main = own_attribute(parameter, "main_grad");
  if (main != nullptr && tensors_.is_tensor(main)) read(main, kept, kept->main_gradient);
}

bool ModelCopy::may_read_gradient(PyObject* parameter, const TensorCopy& kept, const py::object& stepper) {
  if (rule_.are_others_in_backward) return false;
  const bool is_own = stepper.is_none() ? rule_.is_only_maker
                                        : PyLong_AsUnsignedLongMask(stepper.ptr()) == rule_.thread;
  if (!rule_.is_in_backward) return is_own;
  // The thread that called backward() accumulates the gradients on the CPU, and a thread of each
  // accelerator accumulates those on it.
  const int device = kept.parts.empty() ? tensors_.device(parameter) : kept.parts.front().device;
  return device < 0 ? is_own : !is_own && device == rule_.device;
}

void ModelCopy::finish() {
  while (!sparse_.empty()) {
    const Sparse each = std::move(sparse_.back());
    sparse_.pop_back();
    if (tensors_.read_sparse(each.tensor.ptr(), *each.parts) == TensorReader::Result::unknown) ++unread_;
    if (each.role) note_use(*each.parts, *each.role);
  }
}

}  // namespace pytracer
