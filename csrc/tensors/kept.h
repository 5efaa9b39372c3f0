// Which tensors exist that no model and no optimizer has, and who keeps them.
//
// 1. Contracts 1 to 3 of tensor_reader.h: all is read in one go, and no reference is kept.
// 2. The collector must not run meanwhile.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "holders/search.h"
#include "tensors/tensor_reader.h"

namespace pytracer {

// What the graphs of autograd keep for backward passes to come.
//
// 1. Contracts 1 to 3 of tensor_reader.h; no other thread runs a backward pass meanwhile.
// 2. Only what a node refers to is read (`_raw_saved_…` and its `data`): asking a node for a saved tensor
//    would run recomputations and hooks of the program, allocate memory, and may make the backward pass fail.
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

using Ranges = std::vector<std::pair<StorageBegin, uint64_t>>;  // where memory begins, and ends

struct KeptOptions {
  Ranges owned;  // memory with an owner
  std::map<StorageBegin, std::string> models;  // of parameters that no optimizer has
  std::set<int> devices;
  bool has_all_blocks;
  double least_part;  // of a device's memory; if less has no owner, and there are no roots, nothing is looked at
  Ranges blocks;        // that live, sorted
  bool reads_graphs;       // no other thread runs a backward pass
  GraphBounds graphs;
  size_t tensors;          // for how many holders are searched: those that keep graphs, then the largest
  size_t looked;           // how many are looked at, the youngest
  bool has_hidden;         // the collector does not know all objects
  SearchBounds search;
  Folders folders;
  // Models and optimizers, by weak references, whose holders are searched too.
  std::vector<PyObject*> roots;
  // torch.utils.checkpoint's class of regions, and those of modules and optimizers; None: not imported.
  PyObject *region, *module, *optimizer;
};

struct Kept {
  std::vector<Graphs::Saved> saved;                     // by graphs, without an owner
  std::map<StorageBegin, uintptr_t> graphs;             // the tensor that keeps the graph, by what it keeps
  std::unordered_map<uintptr_t, uintptr_t> later;       // see Graphs
  std::map<StorageBegin, std::string> holders;          // "": nobody was found
  std::unordered_map<uintptr_t, std::string> tensors;   // the same, by the ids of tensors
  std::unordered_map<uintptr_t, std::string> roots;     // the same, by the ids of models and optimizers
  py::list modules, optimizers;                         // all there are, by weak references
  std::string likely;                                   // what has memory without a tensor in Python, if no future
  std::vector<std::string> futures;                     // who holds those of torch
  size_t unsearched = 0;   // tensors for which the bounds left no room or time
  bool has_all = true;     // a storage that is not in `holders` has no tensor in Python
  bool has_all_graphs = false;
  uint64_t unread = 0;
};

// `frames` and `exceptions`: as for find_holders(). Throws py::error_already_set, std::bad_alloc.
Kept read_kept(TensorReader& tensors, const py::object& torch, KeptOptions options, PyObject* frames,
               PyObject* exceptions);

}  // namespace pytracer
