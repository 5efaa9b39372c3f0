#include "tensors/tensor_reader.h"

#include <structmember.h>

#include <algorithm>

namespace pytracer {

namespace {

constexpr const char* kFlatten = "__tensor_flatten__";

// Borrowed; null: there is none. No metaclass is asked.
PyObject* class_attribute(PyTypeObject* type, const char* name) {
  const py::object text = stolen(PyUnicode_InternFromString(name));
  return text ? _PyType_Lookup(type, text.ptr()) : nullptr;
}

// Adds a string, or those in a list or tuple.
void add_names(PyObject* value, std::set<std::string>& names, int nesting = 0) {
  if (value == nullptr) return;
  if (PyUnicode_CheckExact(value)) {
    const char* const name = PyUnicode_AsUTF8(value);
    if (name != nullptr) names.insert(name);
    PyErr_Clear();  // it is no Unicode
  } else if ((PyList_Check(value) || PyTuple_Check(value)) && nesting < kMaxTensorNesting) {
    for (Py_ssize_t i = 0; i < Py_SIZE(value); ++i) {
      add_names(PySequence_Fast_GET_ITEM(value, i), names, nesting + 1);
    }
  }
}

}  // namespace

py::object stolen(PyObject* object) {
  if (object == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(object);
}

py::object attribute_of(PyObject* object, const char* name) { return stolen(PyObject_GetAttrString(object, name)); }

py::object attributes_of(PyObject* object) { return stolen(PyObject_GenericGetDict(object, nullptr)); }

bool to_number(const py::object& value, uint64_t& number) {
  if (!value || !PyLong_Check(value.ptr())) return false;
  number = PyLong_AsUnsignedLongLongMask(value.ptr());
  return true;
}

TensorReader::TensorReader(const py::object& torch)
    : tensor_class_(torch.attr("Tensor")), strided_(torch.attr("strided")),
      sparse_(torch.attr("sparse_coo")),
      storage_uses_(attribute_of(torch.attr("_C").ptr(), "_storage_Use_Count")),
      type_(py::isinstance<py::type>(tensor_class_) ? reinterpret_cast<PyTypeObject*>(tensor_class_.ptr())
                                                    : throw py::type_error("torch.Tensor is not a class")) {
}

// Of the class in C that torch.Tensor inherits from, so that nothing that replaces it is called.
TensorReader::Attribute TensorReader::attribute(const char* name, const char* otherwise) const {
  auto* const base = reinterpret_cast<PyObject*>(type_->tp_base);
  py::object found = stolen(PyObject_GetAttrString(base, name));
  if (!found) return otherwise != nullptr ? attribute(otherwise) : Attribute{};
  const bool is_method = Py_TYPE(found.ptr()) == &PyMethodDescr_Type;
  return is_method || Py_TYPE(found.ptr()) == &PyGetSetDescr_Type ? Attribute{found, is_method} : Attribute{};
}

py::object TensorReader::get(const Attribute& attribute, PyObject* tensor) {
  PyObject* const descriptor = attribute.descriptor.ptr();
  if (descriptor == nullptr) return {};
  if (attribute.is_method) return stolen(PyObject_CallOneArg(descriptor, tensor));
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  return stolen(Py_TYPE(descriptor)->tp_descr_get(descriptor, tensor, type));
}

int TensorReader::device(PyObject* tensor) {
  if (kind_of(Py_TYPE(tensor)) != Kind::plain) return -1;  // the program's class may be asked
  const py::object found = get(get_device_, tensor);
  return found && PyLong_Check(found.ptr()) ? static_cast<int>(PyLong_AsLong(found.ptr())) : -1;
}

py::object TensorReader::node(PyObject* tensor) {
  py::object made = py::reinterpret_borrow<py::object>(tensor);
  if (is_true(get(is_view_, tensor))) made = get(base_, tensor);
  py::object node = made && is_tensor(made.ptr()) ? get(grad_fn_, made.ptr()) : py::object();
  return node && !node.is_none() ? node : py::object();
}

TensorReader::Kind TensorReader::kind_of(PyTypeObject* type) {
  if (type == type_) return Kind::plain;
  const auto [place, is_new] = kinds_.try_emplace(type, Kind::plain);
  if (!is_new) return place->second;
  PyObject* const module = class_attribute(type, "__module__");
  const py::object prefix = stolen(PyUnicode_FromString("torch._subclasses."));
  if (module != nullptr && prefix && PyUnicode_Check(module) &&
      PyUnicode_Tailmatch(module, prefix.ptr(), 0, PY_SSIZE_T_MAX, -1) == 1) {
    place->second = Kind::fake;
  } else if (class_attribute(type, kFlatten) != nullptr) {
    place->second = Kind::of_tensors;
  } else if (class_attribute(type, "__torch_dispatch__") != class_attribute(type_, "__torch_dispatch__")) {
    place->second = Kind::opaque;
  }
  PyErr_Clear();
  return place->second;
}

// The names that the code of `__tensor_flatten__` mentions, and those in lists of the class that it mentions.
const std::set<std::string>& TensorReader::part_names(PyTypeObject* type) {
  const auto [place, is_new] = part_names_.try_emplace(type);
  std::set<std::string>& names = place->second;
  PyObject* const order = type->tp_mro;  // a method may call that of a base class
  for (Py_ssize_t i = 0; is_new && order != nullptr && i < PyTuple_GET_SIZE(order); ++i) {
    PyObject* const each = PyTuple_GET_ITEM(order, i);
    PyObject* const flatten =
        PyType_Check(each) ? class_attribute(reinterpret_cast<PyTypeObject*>(each), kFlatten) : nullptr;
    if (flatten == nullptr || !PyFunction_Check(flatten)) continue;
    auto* const code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(flatten));
    add_names(code->co_consts, names);
    std::set<std::string> mentioned;
    add_names(code->co_names, mentioned);
    for (const std::string& name : mentioned) add_names(class_attribute(type, name.c_str()), names);
    names.merge(mentioned);
  }
  return names;
}

// A DTensor, a quantised tensor. Its parts are attributes; its method that names them is the program's.
TensorReader::Result TensorReader::read_parts(PyObject* tensor, std::vector<TensorMemory>& parts,
                                              bool with_storage, int nesting) {
  if (nesting >= kMaxTensorNesting) return Result::unknown;
  Result result = Result::unknown;
  const std::set<std::string>& names = part_names(Py_TYPE(tensor));
  const auto add = [&](const char* name, PyObject* part) {
    if (part == nullptr || !is_tensor(part) || name == nullptr || names.count(name) == 0) return;
    Result of_part = read(part, parts, with_storage, nesting + 1);
    if (of_part == Result::sparse) of_part = Result::unknown;
    result = result == Result::unknown ? of_part : std::max(result, of_part);
  };
  for (PyTypeObject* type = Py_TYPE(tensor); type != nullptr && type != type_; type = type->tp_base) {
    for (PyMemberDef* member = type->tp_members; member != nullptr && member->name != nullptr; ++member) {
      if (member->type != T_OBJECT_EX) continue;  // __slots__
      add(member->name, *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(tensor) + member->offset));
    }
  }
  if (const py::object attributes = attributes_of(tensor)) {
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(attributes.ptr(), &position, &key, &value) != 0;) {
      if (is_tensor(value) && PyUnicode_CheckExact(key)) add(PyUnicode_AsUTF8(key), value);
    }
    PyErr_Clear();  // a name that is no Unicode
  }
  return result;
}

TensorReader::Result TensorReader::read(PyObject* tensor, std::vector<TensorMemory>& parts, bool with_storage,
                                        int nesting) {
  const Kind kind = kind_of(Py_TYPE(tensor));
  if (kind == Kind::fake) return Result::without;
  if (kind == Kind::opaque) return Result::hidden;
  if (kind == Kind::of_tensors) return read_parts(tensor, parts, with_storage, nesting);
  const py::object layout = get(layout_, tensor);
  if (layout.is(sparse_)) return Result::sparse;
  if (!layout) return Result::unknown;
  if (!layout.is(strided_)) return Result::hidden;
  TensorMemory memory{};
  uint64_t offset = 0, element_size = 0, elements = 0;
  // A tensor without storage raises: a fake, functional or batched one.
  const bool has_storage = to_number(get(data_ptr_, tensor), memory.address);
  if (!has_storage || memory.address == 0) {
    const bool is_without = is_true(get(is_meta_, tensor)) ||
                            (to_number(get(numel_, tensor), elements) && elements == 0);
    return is_without ? Result::without : Result::hidden;
  }
  if (!to_number(get(nbytes_, tensor), memory.size)) return Result::unknown;
  if (memory.size == 0) return Result::without;
  if (!to_number(get(storage_offset_, tensor), offset) || !to_number(get(element_size_, tensor), element_size)) {
    return Result::unknown;
  }
  memory.begin = memory.address - offset * element_size;
  memory.device = device(tensor);
  if (with_storage) {
    const py::object kept = storage(tensor);
    const py::object bytes = kept ? stolen(PyObject_CallMethod(kept.ptr(), "nbytes", nullptr)) : py::object();
    if (!to_number(bytes, memory.storage_size)) return Result::unknown;
  }
  parts.push_back(memory);
  return Result::memory;
}

TensorReader::Result TensorReader::read_sparse(PyObject* tensor, std::vector<TensorMemory>& parts) {
  Result result = Result::memory;
  for (const Attribute* each : {&indices_, &values_}) {
    const py::object part = get(*each, tensor);
    result = part && is_tensor(part.ptr()) ? std::max(result, read(part.ptr(), parts)) : Result::unknown;
  }
  return result;
}

bool TensorReader::are_all_of_storage(const std::vector<PyObject*>& tensors) {
  if (!storage_uses_ || !use_count_.descriptor) return false;
  const py::object kept = storage(tensors.front());  // one more use
  constexpr Py_ssize_t kOurs = 2;  // references: of this variable, and of torch
  if (!kept || Py_REFCNT(kept.ptr()) > kOurs) return false;
  const py::object address = attribute_of(kept.ptr(), "_cdata");
  uint64_t uses = 0;
  if (!address || !to_number(stolen(PyObject_CallOneArg(storage_uses_.ptr(), address.ptr())), uses)) return false;
  if (uses != tensors.size() + 1) return false;
  for (PyObject* each : tensors) {
    if (!to_number(get(use_count_, each), uses) || uses != 1) return false;
  }
  return true;
}

}  // namespace pytracer
