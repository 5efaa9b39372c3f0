#include "tensors/kept.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "frames/frame_walk.h"
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

constexpr double kLeastBytes = 1 << 20;  // what is always worth a search

class KeptSearch {
 public:
  KeptSearch(TensorReader& tensors, KeptOptions options) : tensors_(tensors), options_(std::move(options)) {
    std::sort(options_.owned.begin(), options_.owned.end());
  }

  Kept run(const py::object& torch, PyObject* frames, PyObject* exceptions) {
    kept_.has_all = frames_are_known();  // else nothing protects what is borrowed, as without the GIL
    if (!kept_.has_all || (!has_unexplained() && options_.roots.empty())) return std::move(kept_);
    const py::object tensor = torch.attr("Tensor");
    const py::object function = torch.attr("autograd").attr("function").attr("BackwardCFunction");
    const ObjectsNow objects({tensor.ptr(), function.ptr(), options_.region, options_.module, options_.optimizer,
                              reinterpret_cast<PyObject*>(&PyMethod_Type)});
    const std::vector<PyObject*>& tensors = objects.instances[0];
    kept_.modules = references_to(objects.instances[3]);
    kept_.optimizers = references_to(objects.instances[4]);
    PyObject* const autocast = variable_of_module("torch.amp.autocast_mode", "autocast");
    for (PyObject* method : objects.instances[5]) {  // one that ends a region is on the stack of the code in it
      PyObject* const region = PyMethod_GET_SELF(method);
      const bool is_region = autocast != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(region)) == autocast;
      const bool is_on = is_region && own_attribute(region, "_enabled") == Py_True;
      if (is_on && own_attribute(region, "_cache_enabled") == Py_True) kept_.likely = "autocast's cache";
    }
    if (options_.reads_graphs) {
      // The nodes are dropped before a search counts references.
      add_graphs(read_graphs(tensors_, torch, options_.graphs, tensors, objects.instances[1], objects.instances[2],
                             options_.models));
    }
    choose(tensors);
    options_.search.wants_opaque = has_unexplained();
    const size_t first_root = targets_.size();
    for (PyObject* reference : options_.roots) {
      if (PyObject* const root = referent(reference)) targets_.push_back(root);
    }
    // Reading nodes makes dicts of their attributes, in newer Pythons.
    std::vector<PyObject*> later;
    if (options_.reads_graphs && PY_VERSION_HEX >= 0x030d0000) later = ObjectsNow({}).all;
    const FoundHolders found = find_holders(targets_, later.empty() ? objects.all : later, frames, exceptions,
                                            options_.folders, options_.search);
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
  // Adds the memory that graphs keep, unless a tensor with an owner has a part of it: the weights of a
  // layer are kept too, and all parameters of FSDP1 are in one storage.
  void add_graphs(Graphs graphs) {
    Ranges owned = options_.owned;
    std::set<StorageBegin> known;
    for (Graphs::Saved& each : graphs.saved) {
      const StorageBegin begin{each.memory.device, each.memory.begin};
      const uint64_t end = each.memory.begin + each.memory.storage_size;
      const auto next = std::lower_bound(options_.owned.begin(), options_.owned.end(), Ranges::value_type(begin, 0));
      const bool has_owner = next != options_.owned.end() && next->first < StorageBegin(begin.first, end);
      if (!known.insert(begin).second || has_owner) continue;
      kept_.graphs[begin] = each.kept_by;
      if (options_.devices.count(begin.first) == 0) continue;
      owned.push_back({begin, end});
      kept_.saved.push_back(std::move(each));
    }
    std::sort(owned.begin(), owned.end());
    options_.owned = std::move(owned);
    kept_.has_all_graphs = graphs.is_complete;
    kept_.unread = graphs.unread + (graphs.is_complete ? 0 : 1);
    kept_.later = std::move(graphs.later);
    graph_of_ = std::move(graphs.graph_of);
  }

  static bool covers(const Ranges& ranges, const StorageBegin& place) {
    const auto next = std::upper_bound(ranges.begin(), ranges.end(), Ranges::value_type(place, UINT64_MAX));
    return next != ranges.begin() && std::prev(next)->first.first == place.first &&
           place.second < std::prev(next)->second;
  }

  // Whether live blocks of a device may have neither an owner nor a tensor whose holder is searched. A part of its
  // memory that is too small to matter is not worth a look at all objects: the inputs and the loss of a training.
  bool has_unexplained() {
    if (!options_.has_all_blocks) return true;
    std::map<int, std::pair<uint64_t, uint64_t>> bytes;  // by device: all, and unexplained
    for (const auto& [begin, end] : options_.blocks) {
      const auto target = ends_.lower_bound(begin);
      const bool is_searched = target != ends_.end() && target->first < StorageBegin(begin.first, end);
      auto& [all, open] = bytes[begin.first];
      all += end - begin.second;
      open += is_searched || covers(options_.owned, begin) ? 0 : end - begin.second;
    }
    bool has_some = false, has_enough = false;
    for (const auto& [device, each] : bytes) {
      const double least = std::min(options_.least_part * static_cast<double>(each.first), kLeastBytes);
      has_some |= each.second != 0;
      has_enough |= static_cast<double>(each.second) > least;
    }
    kept_.has_all = kept_.has_all && (has_enough || !has_some);
    return has_enough;
  }

  bool is_wanted(const StorageBegin& begin) const {
    return options_.devices.count(begin.first) != 0 && !covers(options_.owned, begin) &&
           (!options_.has_all_blocks || covers(options_.blocks, begin));
  }

  void choose(const std::vector<PyObject*>& all) {
    const size_t first = all.size() - std::min(all.size(), options_.looked);
    kept_.has_all = first == 0 && !options_.has_hidden;
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
      const bool keeps_graph = graph_of_.count(reinterpret_cast<uintptr_t>(all[i])) != 0;
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

Kept read_kept(TensorReader& tensors, const py::object& torch, KeptOptions options, PyObject* frames,
               PyObject* exceptions) {
  return KeptSearch(tensors, std::move(options)).run(torch, frames, exceptions);
}

}  // namespace pytracer
