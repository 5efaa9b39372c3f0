// Where the memory of tensors is, read from the Python objects that torch makes of them.
//
// 1. The GIL is held and never released, and no code of the program runs: the attributes of torch's own
//    class are asked, not those of subclasses. So borrowed references stay valid, and no thread drops a
//    tensor meanwhile.
// 2. The calling thread has switched off functions that intercept those of tensors.
// 3. No method leaves a Python error behind.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pytracer {

namespace py = pybind11;

struct TensorMemory {
  uint64_t address;  // where the tensor's elements begin
  uint64_t size;     // the bytes of its elements
  int device;        // -1: the CPU
  uint64_t begin;    // where the storage begins, of which the tensor may be a part
  uint64_t storage_size = 0;  // if it was asked for
};

// Where the storage of a tensor begins: the device and the address.
using StorageBegin = std::pair<int, uint64_t>;

constexpr int kMaxTensorNesting = 4;  // how deep tensors may be nested in tensors, lists and dicts

class TensorReader {
 public:
  enum class Result : uint8_t {
    memory,   // all memory was found
    without,  // the tensor has none: a fake one, one on the device "meta", an empty one
    hidden,   // it has no storage of its own, as a functional one, or another layout; or it is opaque
    unknown,  // it could not be read
    sparse,   // torch would release the GIL: see read_sparse()
  };

  // `torch`: the module. Throws py::error_already_set if it has no tensors.
  explicit TensorReader(const py::object& torch);

  bool is_tensor(PyObject* object) const { return PyType_IsSubtype(Py_TYPE(object), type_) != 0; }
  // Adds the memory of a tensor: several parts if it consists of tensors.
  Result read(PyObject* tensor, std::vector<TensorMemory>& parts, bool with_storage = false,
              int nesting = 0);
  // Adds the memory of a tensor of two dense ones. RELEASES THE GIL.
  Result read_sparse(PyObject* tensor, std::vector<TensorMemory>& parts);
  // Whether these tensors, which share a storage, are all that has it: no other object, no C++.
  bool are_all_of_storage(const std::vector<PyObject*>& tensors);

  py::object gradient(PyObject* tensor) { return get(grad_, tensor); }  // null: none
  bool has_gradient(PyObject* tensor) { return is_true(get(is_leaf_, tensor)); }
  bool requires_gradient(PyObject* tensor) { return is_true(get(requires_grad_, tensor)); }
  int device(PyObject* tensor);  // -1: the CPU, or a tensor whose class is not asked
  // The node that made a tensor; of a view, the one that made what it is a view of. Null: none.
  // Asking a view itself makes a new node, if its memory was changed in place.
  py::object node(PyObject* tensor);

  // Calls `use` with the tensors in a value: a tensor, or lists and dicts of tensors. Borrowed.
  template <class Use>
  void for_each_tensor(PyObject* value, const Use& use, int nesting = 0) const;

 private:
  struct Attribute {
    py::object descriptor;
    bool is_method = false;
  };

  Attribute attribute(const char* name, const char* otherwise = nullptr) const;
  static py::object get(const Attribute& attribute, PyObject* tensor);  // null: it failed
  static bool is_true(const py::object& value) { return value.ptr() == Py_True; }
  // `opaque`: a class whose `__torch_dispatch__` may answer questions for sizes, layout and device.
  enum class Kind : uint8_t { plain, of_tensors, opaque, fake };
  Kind kind_of(PyTypeObject* type);
  const std::set<std::string>& part_names(PyTypeObject* type);
  Result read_parts(PyObject* tensor, std::vector<TensorMemory>& parts, bool with_storage, int nesting);
  py::object storage(PyObject* tensor) { return get(untyped_storage_, tensor); }

  py::object tensor_class_, strided_, sparse_, storage_uses_;
  PyTypeObject* type_;
  Attribute layout_ = attribute("layout"), nbytes_ = attribute("nbytes"), numel_ = attribute("numel"),
      data_ptr_ = attribute("const_data_ptr", "data_ptr"),  // data_ptr() copies memory that is shared until written
      storage_offset_ = attribute("storage_offset"), element_size_ = attribute("element_size"),
      get_device_ = attribute("get_device"), is_meta_ = attribute("is_meta"), is_leaf_ = attribute("is_leaf"),
      grad_ = attribute("grad"), grad_fn_ = attribute("grad_fn"), requires_grad_ = attribute("requires_grad"),
      base_ = attribute("_base"), is_view_ = attribute("_is_view"), untyped_storage_ = attribute("untyped_storage"),
      indices_ = attribute("_indices"), values_ = attribute("_values"), use_count_ = attribute("_use_count");
  std::unordered_map<PyTypeObject*, Kind> kinds_;
  std::unordered_map<PyTypeObject*, std::set<std::string>> part_names_;
};

// An attribute of an object of torch; null: it has none.
py::object attribute_of(PyObject* object, const char* name);

// The dict of an object's attributes; null: it has none.
py::object attributes_of(PyObject* object);

// A new reference that a function of Python returned; null: it failed, and its error is dropped.
py::object stolen(PyObject* object);

// The value of an integer; false: it is none.
bool to_number(const py::object& value, uint64_t& number);

template <class Use>
void TensorReader::for_each_tensor(PyObject* value, const Use& use, int nesting) const {
  if (is_tensor(value)) {
    use(value);
    return;
  }
  if (nesting >= kMaxTensorNesting) return;
  if (PyList_Check(value) || PyTuple_Check(value)) {
    for (Py_ssize_t i = 0; i < Py_SIZE(value); ++i) {
      for_each_tensor(PyList_Check(value) ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i), use,
                      nesting + 1);
    }
  } else if (PyDict_Check(value)) {
    PyObject *key, *item;
    for (Py_ssize_t position = 0; PyDict_Next(value, &position, &key, &item) != 0;) {
      for_each_tensor(item, use, nesting + 1);
    }
  }
}

}  // namespace pytracer
