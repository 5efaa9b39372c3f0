#include "tensors/kept.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "holders/references.h"
#include "tensors/model_copy.h"

namespace pytracer {

namespace {

bool is_of_garbage(std::string_view text) {
  constexpr std::string_view kEnd = kGarbage;
  return text.size() >= kEnd.size() && text.substr(text.size() - kEnd.size()) == kEnd;
}

// The beginning of DLPack's tensors; torch leaves the offset 0.
struct DLTensor {
  uint64_t address;
  int32_t device_type, device_id;
};
constexpr int32_t kDLCPU = 1;

// Whether a method ends a region of autocast: it is on the stack of the code that runs in the region.
bool ends_autocast(PyObject* method, PyObject* autocast) {
  if (autocast == nullptr || !PyMethod_Check(method)) return false;
  PyObject* const region = PyMethod_GET_SELF(method);
  return reinterpret_cast<PyObject*>(Py_TYPE(region)) == autocast &&
         own_attribute(region, "_enabled") == Py_True && own_attribute(region, "_cache_enabled") == Py_True;
}

class KeptSearch {
 public:
  KeptSearch(TensorReader& tensors, KeptOptions options) : tensors_(tensors), options_(std::move(options)) {}

  // Adds the memory that graphs keep, unless a tensor with an owner has a part of it: the weights of a
  // layer are kept too, and all parameters of FSDP1 are in one storage.
  void add_graphs(Graphs& graphs) {
    const std::map<StorageBegin, uint64_t> owned = options_.owned;
    std::set<StorageBegin> known;
    for (Graphs::Saved& each : graphs.saved) {
      const StorageBegin begin{each.memory.device, each.memory.begin};
      if (!known.insert(begin).second) continue;
      const StorageBegin end{each.memory.device, each.memory.begin + each.memory.storage_size};
      const auto next = owned.lower_bound(begin);
      if (next != owned.end() && next->first < end) continue;
      kept_.graphs[begin] = each.kept_by;
      if (options_.devices.count(begin.first) == 0) continue;
      options_.owned[begin] = end.second;
      kept_.saved.push_back(std::move(each));
    }
    kept_.has_all_graphs = graphs.is_complete;
    kept_.unread = graphs.unread + (graphs.is_complete ? 0 : 1);
    kept_.later = std::move(graphs.later);
    graph_of_ = std::move(graphs.graph_of);
  }

  Kept run(PyObject* objects, PyObject* frames, PyObject* exceptions) {
    choose(objects);
    const size_t first_root = targets_.size();
    for (PyObject* reference : options_.roots) {
      if (PyObject* const root = referent(reference)) targets_.push_back(root);
    }
    const FoundHolders found =
        find_holders(targets_, nullptr, objects, frames, exceptions, options_.folders, options_.search);
    for (size_t i = first_root; i < targets_.size(); ++i) {
      kept_.roots[reinterpret_cast<uintptr_t>(targets_[i])] = found.texts[i];
    }
    name(found);
    for (const auto& [object, text] : found.opaque) {
      if (PyCapsule_CheckExact(object)) {
        name_capsule(object, text);
      } else if (text != kTemporary) {
        kept_.futures.push_back(text);
      }
    }
    return std::move(kept_);
  }

 private:
  bool is_wanted(const StorageBegin& begin) const {
    if (options_.devices.count(begin.first) == 0) return false;
    auto place = options_.owned.upper_bound(begin);
    if (place == options_.owned.begin()) return true;
    --place;
    return place->first.first != begin.first || begin.second >= place->second;
  }

  void choose(PyObject* objects) {
    std::vector<PyObject*> all;
    PyObject* const autocast = variable_of_module("torch.amp.autocast_mode", "autocast");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); ++i) {
      PyObject* const object = PyList_GET_ITEM(objects, i);
      if (ends_autocast(object, autocast)) kept_.likely = "autocast's cache";
      if (tensors_.is_tensor(object)) all.push_back(object);
    }
    const size_t first = all.size() - std::min(all.size(), options_.looked);
    kept_.has_all = first == 0 && !options_.has_hidden;
    std::set<uintptr_t> keepers;
    for (const auto& [tensor, graph] : graph_of_) keepers.insert(tensor);
    struct Candidate {
      bool keeps_no_graph;
      uint64_t size;
      PyObject* tensor;
      StorageBegin begin;
      uint64_t end;
    };
    std::vector<Candidate> found;
    for (size_t i = first; i < all.size(); ++i) {
      std::vector<TensorMemory> parts;
      const TensorReader::Result result = tensors_.read(all[i], parts);
      if (parts.empty() && result != TensorReader::Result::without) kept_.has_all = false;
      const bool keeps_graph = keepers.count(reinterpret_cast<uintptr_t>(all[i])) != 0;
      for (const TensorMemory& part : parts) {
        const StorageBegin begin{part.device, part.begin};
        if (!keeps_graph && !is_wanted(begin)) continue;
        found.push_back({!keeps_graph, part.size, all[i], begin, part.address + part.size});
      }
    }
    std::stable_sort(found.begin(), found.end(), [](const Candidate& one, const Candidate& other) {
      return std::tuple(one.keeps_no_graph, other.size) < std::tuple(other.keeps_no_graph, one.size);
    });
    if (found.size() > options_.tensors) {
      kept_.unsearched = found.size() - options_.tensors;
      kept_.has_all = false;
      found.resize(options_.tensors);
    }
    for (const Candidate& each : found) {
      targets_.push_back(each.tensor);
      begins_.push_back(each.begin);
      ends_[each.begin] = std::max(ends_[each.begin], each.end);
    }
  }

  void name(const FoundHolders& found) {
    std::map<StorageBegin, std::pair<std::string, std::vector<PyObject*>>> garbage;
    std::map<StorageBegin, std::string> unheld;
    std::unordered_map<uintptr_t, const std::string*> garbage_tensors;
    for (size_t i = 0; i < begins_.size(); ++i) {
      const std::string& text = found.texts[i];
      const auto tensor = reinterpret_cast<uintptr_t>(targets_[i]);
      if (text.empty() && !found.is_whole) {
        ++kept_.unsearched;
        kept_.has_all = false;
      } else if (is_of_garbage(text)) {
        auto& of_begin = garbage[begins_[i]];
        if (of_begin.first.empty()) of_begin.first = text;
        of_begin.second.push_back(targets_[i]);
        garbage_tensors[tensor] = &text;
        kept_.holders.try_emplace(begins_[i]);
      } else if (text == kTemporary || text == kOnlyNative) {
        if (text == kTemporary || unheld.count(begins_[i]) == 0) unheld[begins_[i]] = text;
        kept_.tensors[tensor].clear();
        if (text == kOnlyNative && options_.reads_graphs && tensors_.has_gradient(targets_[i])) {
          const py::object gradient = tensors_.gradient(targets_[i]);
          const bool has_graph = gradient && tensors_.is_tensor(gradient.ptr()) && tensors_.node(gradient.ptr());
          if (has_graph) kept_.likely = "the graph of a gradient";  // which keeps its tensor
        }
      } else {
        std::string& known = kept_.holders[begins_[i]];
        if (known.empty()) known = text;
        kept_.tensors[tensor] = text;
      }
    }
    for (const auto& [begin, each] : garbage) {
      std::string& known = kept_.holders[begin];
      if (known.empty() && tensors_.are_all_of_storage(each.second)) known = each.first;
    }
    // What a graph keeps is garbage if all tensors that keep the graph are.
    std::set<uintptr_t> used;
    for (const auto& [tensor, graph] : graph_of_) {
      if (garbage_tensors.count(tensor) == 0) used.insert(graph);
    }
    for (const auto& [tensor, graph] : graph_of_) {
      if (kept_.has_all_graphs && used.count(graph) == 0) kept_.tensors[tensor] = *garbage_tensors[tensor];
    }
    for (const auto& [begin, text] : unheld) {
      std::string& known = kept_.holders[begin];
      if (known.empty()) known = text;
    }
  }

  // A tensor in a capsule, of which there may be no object in Python.
  void name_capsule(PyObject* capsule, const std::string& text) {
    const auto& tensor = *static_cast<const DLTensor*>(PyCapsule_GetPointer(capsule, kTensorCapsule));
    const int device = tensor.device_type == kDLCPU ? -1 : tensor.device_id;
    const StorageBegin begin{device, tensor.address};
    auto known = kept_.holders.upper_bound(begin);
    const bool is_inside = known != kept_.holders.begin() && (--known)->first.first == device &&
                           ends_[known->first] > begin.second;
    if (!is_inside) {
      if (is_wanted(begin)) kept_.holders.emplace(begin, text);
    } else if (known->second.empty() || known->second == kOnlyNative) {
      known->second = text;
    }
  }

  TensorReader& tensors_;
  KeptOptions options_;
  std::map<StorageBegin, uint64_t> ends_;  // of the tensors
  std::unordered_map<uintptr_t, uintptr_t> graph_of_;  // see Graphs
  std::vector<PyObject*> targets_;    // tensors, then roots
  std::vector<StorageBegin> begins_;  // of the tensors
  Kept kept_;
};

}  // namespace

Kept read_kept(TensorReader& tensors, const py::object& torch, const py::object& checkpoint,
               KeptOptions options, PyObject* objects, PyObject* frames, PyObject* exceptions) {
  const bool reads_graphs = options.reads_graphs;
  const GraphBounds bounds = options.graphs;
  KeptSearch search(tensors, std::move(options));
  if (reads_graphs) {
    Graphs graphs(tensors, torch, checkpoint, bounds);
    graphs.read(objects);
    search.add_graphs(graphs);
  }  // the nodes are dropped: a search counts references
  return search.run(objects, frames, exceptions);
}

}  // namespace pytracer
