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

#include "tensors/graphs.h"
#include "tensors/tensor_reader.h"

namespace pytracer {

using Ranges = std::vector<std::pair<StorageBegin, uint64_t>>;  // where memory begins, and ends

struct KeptOptions {
  Ranges owned;  // memory with an owner
  std::map<StorageBegin, std::string> models;  // of parameters that no optimizer has
  std::set<int> devices;
  bool has_all_blocks;  // if each block has an owner, nothing is looked at
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
