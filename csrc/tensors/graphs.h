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

struct Graphs {
  struct Saved {
    std::string name;  // "MmBackward0.self"
    TensorMemory memory;
    uintptr_t kept_by;  // the id of a tensor that keeps the graph; 0: none is known
    PyObject* node;     // of the graph, while it is read; null: it may be of use
  };
  std::vector<Saved> saved;  // a storage may come more than once
  // Tensors that were computed from others, by the ids of the others: they keep what these keep.
  std::unordered_map<uintptr_t, uintptr_t> later;
  // The number of the graph of each tensor that keeps one; connected graphs are one.
  std::unordered_map<uintptr_t, uintptr_t> graph_of;
  uint64_t unread = 0;       // nodes, and regions of checkpoints, that could not be read
  bool is_complete = true;   // neither bound was reached
};

// Of all tensors, torch's functions, and regions of torch.utils.checkpoint. `models`: those of parameters that no
// optimizer has.
Graphs read_graphs(TensorReader& reader, const py::object& torch, const GraphBounds& bounds,
                   const std::vector<PyObject*>& tensors, const std::vector<PyObject*>& functions,
                   const std::vector<PyObject*>& checkpoints, const std::map<StorageBegin, std::string>& models);

}  // namespace pytracer
