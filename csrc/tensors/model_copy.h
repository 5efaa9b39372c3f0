// What modules and optimizers have, as numbers and names: copied in one go, without keeping any of it.
//
// 1. Contracts 1 to 3 of tensor_reader.h. Only finish() gives up the GIL, when no borrowed reference is
//    left: for sparse tensors, to each of which it has one reference until that tensor is read.
// 2. Only the dicts of objects are looked at, so a property of the program's class is not asked.
// 3. The collector must not run meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "record/event.h"
#include "tensors/tensor_reader.h"

namespace pytracer {

// Where a tensor is, and its gradients.
struct TensorCopy {
  uintptr_t number;  // its id in Python
  std::vector<TensorMemory> parts;
  std::vector<TensorMemory> gradient;
  std::vector<TensorMemory> main_gradient;  // Megatron's, in full precision
  bool is_gradient_unread = false;          // another thread may replace it
};
using TensorCopies = std::vector<std::shared_ptr<TensorCopy>>;

// Whether the current thread may read a gradient: pytracer/owners/read.py has the reason.
struct GradientRule {
  bool is_read;
  unsigned long thread;
  bool is_only_maker;   // of modules; then it may read those that no optimizer has stepped
  bool is_in_backward;
  int device;           // of a thread of autograd's
  bool are_others_in_backward;  // then it reads none
};

class ModelCopy {
 public:
  using Use = std::function<void(const TensorMemory&, TensorRole)>;

  // `use`: called with all memory; may be empty.
  ModelCopy(TensorReader& tensors, const GradientRule& rule, Use use)
      : tensors_(tensors), rule_(rule), use_(std::move(use)) {}

  // `module`: a weak reference. Returns its id, class, parameters and buffers (dicts of TensorCopy), and
  // submodules: tuples of name, id and weak reference. None: it is gone. `steppers`: the threads that
  // stepped parameters, by their ids.
  py::object module(PyObject* module, const py::dict& steppers);
  // `optimizer`: a weak reference. Returns its id, class, groups, and states from `first_state` on; and the
  // first parameter and state for the next call, and whether there are more, because one call takes few.
  // A group is its number, its parameters from `first_parameter` on, and pairs of a name and tensors. A
  // state is the id of its parameter, or None, and such pairs. `thread`: the one that steps it, or None.
  py::object optimizer(PyObject* optimizer, const py::object& thread, Py_ssize_t first_parameter,
                             Py_ssize_t first_state);
  // Reads sparse tensors. RELEASES THE GIL.
  void finish();

  uint64_t unread() const { return unread_; }

 private:
  std::shared_ptr<TensorCopy> copy(PyObject* tensor, TensorRole role);
  void read(PyObject* tensor, const std::shared_ptr<TensorCopy>& kept, std::vector<TensorMemory>& parts,
            std::optional<TensorRole> role = {});
  void note_use(const std::vector<TensorMemory>& parts, TensorRole role) const;
  void read_gradients(PyObject* parameter, const std::shared_ptr<TensorCopy>& kept, const py::object& stepper);
  bool may_read_gradient(PyObject* parameter, const TensorCopy& kept, const py::object& stepper);
  TensorCopies copies_in(PyObject* value, TensorRole role);
  py::dict tensors_of(PyObject* module, const char* kind, TensorRole role, const py::dict& steppers);
  py::list named_copies(PyObject* dict, const char* without = "");

  struct Sparse {
    py::object tensor;
    std::shared_ptr<TensorCopy> kept;  // which has the parts
    std::vector<TensorMemory>* parts;
    std::optional<TensorRole> role;  // none: a gradient
  };
  TensorReader& tensors_;
  const GradientRule rule_;
  const Use use_;
  std::vector<Sparse> sparse_;
  py::list made_by_torch_;  // a script's tensors have no Python object of their own
  uint64_t unread_ = 0;
};

// What a weak reference refers to, borrowed; null: it is gone.
PyObject* referent(PyObject* reference);

// The ids of objects, and weak references to them; without those whose classes have none.
py::list references_to(const std::vector<PyObject*>& objects);

// The name of a class, as `__name__`.
py::str short_class_name(PyTypeObject* type);

}  // namespace pytracer
