// What the graphs of autograd keep for backward passes to come.
//
// 1. Contracts 1 to 3 of tensor_reader.h; no other thread runs a backward pass meanwhile.
// 2. Only what a node refers to is read (`_raw_saved_…` and its `data`): asking a node for a saved tensor
//    would run recomputations and hooks of the program, allocate memory, and may make the backward pass fail.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holders/search.h"
#include "tensors/tensor_reader.h"

namespace pytracer {

struct GraphBounds {
  // Of connected graphs, and how many tensors are asked for theirs: torch 2.13 keeps the Python object of
  // each node that was asked for; freeing a chain of 42,000 of them overflows the stack.
  size_t nodes;
  double seconds;  // of a ThreadClock
};

class Graphs {
 public:
  struct Saved {
    std::string name;  // "MmBackward0.self"
    TensorMemory memory;
    uintptr_t kept_by;  // the id of a tensor that keeps the graph; 0: none is known
    PyObject* node;     // of the graph, while it is read; null: it may be of use
  };

  Graphs(TensorReader& tensors, const py::object& torch, const GraphBounds& bounds)
      : tensors_(tensors), current_(torch.attr("_C").attr("_current_autograd_node")()),
        function_class_(torch.attr("_C").attr("_FunctionBase")), bounds_(bounds) {}

  // All tensors, torch's functions, and regions of torch.utils.checkpoint. `models`: those of parameters that no
  // optimizer has.
  void read(const std::vector<PyObject*>& tensors, const std::vector<PyObject*>& functions,
            const std::vector<PyObject*>& checkpoints, const std::map<StorageBegin, std::string>& models);

  std::vector<Saved> saved;  // a storage may come more than once
  // Tensors that were computed from others, by the ids of the others: they keep what these keep.
  std::unordered_map<uintptr_t, uintptr_t> later;
  // The number of the graph of each tensor that keeps one; connected graphs are one.
  std::unordered_map<uintptr_t, uintptr_t> graph_of;
  uint64_t unread = 0;       // nodes, and regions of checkpoints, that could not be read
  bool is_complete = true;   // neither bound was reached

 private:
  struct Seen {
    py::object node;  // which stays alive meanwhile, so that no other gets its address
    uintptr_t kept_by;
    bool has_next;  // a node without others ends the graphs, as that of a parameter does
  };

  void begin(PyObject* tensor);
  void walk();
  void name_untrained(const std::map<StorageBegin, std::string>& models);
  bool follow(const py::object& node, uintptr_t kept_by);
  void read_node(PyObject* node, uintptr_t kept_by);
  void read_saved(const std::string& name, PyObject* saved, uintptr_t kept_by);
  void read_checkpoint(PyObject* frame);
  void add(const std::string& name, PyObject* value, uintptr_t kept_by);
  const std::vector<std::string>& attributes_saved(PyTypeObject* type);
  uintptr_t first_of(uintptr_t graph);
  size_t count(uintptr_t graph);
  size_t join(uintptr_t one, uintptr_t other);

  TensorReader& tensors_;
  const py::object current_, function_class_;
  const GraphBounds bounds_;
  const ThreadClock clock_;
  std::vector<std::pair<py::object, uintptr_t>> waiting_;
  std::unordered_map<PyObject*, uintptr_t> made_by_;    // tensors by nodes
  std::unordered_map<PyObject*, Seen> seen_;
  bool has_untrained_ = false;  // whether there are parameters that no optimizer has; else the next two are empty
  std::unordered_map<PyObject*, std::vector<PyObject*>> users_;  // the nodes that lead to a node
  std::unordered_map<PyObject*, StorageBegin> leaves_;           // the nodes of parameters
  std::unordered_map<uintptr_t, uintptr_t> joined_;     // connected graphs of one tensor each
  std::unordered_map<uintptr_t, size_t> nodes_;
  std::unordered_map<PyTypeObject*, std::vector<std::string>> saved_attributes_;
};

}  // namespace pytracer
