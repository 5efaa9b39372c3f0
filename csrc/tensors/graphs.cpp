#include <algorithm>
#include <cstring>

#include "holders/references.h"
#include "tensors/kept.h"
#include "tensors/model_copy.h"

namespace pytracer {

constexpr const char* kRaw = "_raw_saved_";

namespace {

class GraphReader : public Graphs {
 public:
  GraphReader(TensorReader& tensors, const py::object& torch, const GraphBounds& bounds)
      : tensors_(tensors), current_(torch.attr("_C").attr("_current_autograd_node")()),
        function_class_(torch.attr("_C").attr("_FunctionBase")), bounds_(bounds) {}

  void read(const std::vector<PyObject*>& tensors, const std::vector<PyObject*>& functions,
                    const std::vector<PyObject*>& checkpoints, const std::map<StorageBegin, std::string>& models) {
    waiting_.emplace_back(current_, 0);
    for (PyObject* each : functions) waiting_.emplace_back(py::reinterpret_borrow<py::object>(each), 0);
    for (PyObject* each : tensors) begin(each);  // their nodes come first, because they tell what keeps a node
    has_untrained_ = !models.empty();
    while (!waiting_.empty()) {
      const auto [node, kept_by] = std::move(waiting_.back());
      waiting_.pop_back();
      if (node && !node.is_none() && !follow(node, kept_by)) break;
    }
    if (is_complete && has_untrained_) name_untrained(models);
    for (PyObject* each : checkpoints) read_checkpoint(each);
    for (const auto& [node, tensor] : made_by_) graph_of[tensor] = tensor;
    for (auto& [tensor, graph] : graph_of) graph = first_of(graph);
  }

 private:
  struct Seen {
    py::object node;  // which stays alive meanwhile, so that no other gets its address
    uintptr_t kept_by;
    bool has_next;  // a node without others ends the graphs, as that of a parameter does
  };

  void begin(PyObject* tensor) {
    is_complete = is_complete && made_by_.size() < bounds_.nodes;  // asking a tensor makes an object of its node too
    py::object node = is_complete ? tensors_.node(tensor) : py::object();
    if (!node) return;
    const auto number = reinterpret_cast<uintptr_t>(tensor);
    const auto [place, is_first] = made_by_.try_emplace(node.ptr(), number);
    if (is_first) {
      waiting_.emplace_back(std::move(node), number);
    } else {  // another view of the same tensor
      later[number] = graph_of[number] = place->second;
    }
  }

  // False: a bound was reached.
  bool follow(const py::object& node, uintptr_t kept_by) {
    const auto known = seen_.find(node.ptr());
    if (known != seen_.end() && kept_by == 0) return true;
    const auto made = made_by_.find(node.ptr());
    if (made != made_by_.end() && made->second != kept_by) later[made->second] = kept_by;
    size_t together = 0;
    if (known == seen_.end()) {
      together = ++nodes_[first_of(kept_by)];
    } else if (known->second.has_next) {
      together = join(known->second.kept_by, kept_by);
    }
    if (together > bounds_.nodes || clock_.seconds() > bounds_.seconds) {
      is_complete = false;
      return false;
    }
    if (known != seen_.end()) return true;
    // A function that is in no graph any more has none.
    const py::object next = attribute_of(node.ptr(), "next_functions");
    const bool has_next = next && PyTuple_Check(next.ptr()) && PyTuple_GET_SIZE(next.ptr()) > 0;
    for (Py_ssize_t i = 0; has_next && i < PyTuple_GET_SIZE(next.ptr()); ++i) {
      PyObject* const pair = PyTuple_GET_ITEM(next.ptr(), i);
      if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) > 0) {
        waiting_.emplace_back(py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(pair, 0)), kept_by);
        if (has_untrained_) users_[PyTuple_GET_ITEM(pair, 0)].push_back(node.ptr());
      }
    }
    if (has_untrained_ && !has_next && std::string(short_class_name(Py_TYPE(node.ptr()))) == "AccumulateGrad") {
      std::vector<TensorMemory> parts;
      if (const py::object leaf = attribute_of(node.ptr(), "variable")) tensors_.read(leaf.ptr(), parts);
      // What cannot be read, or has several parts, may be trained.
      leaves_.emplace(node.ptr(), parts.size() == 1 ? StorageBegin(parts[0].device, parts[0].begin) : StorageBegin());
    }
    seen_.emplace(node.ptr(), Seen{node, kept_by, has_next});
    const size_t before = saved.size();
    read_node(node.ptr(), kept_by);
    for (size_t i = before; i < saved.size(); ++i) saved[i].node = node.ptr();
    return true;
  }

  // What leads to any other parameter, through any nodes, is of use, and comes first.
  void name_untrained(const std::map<StorageBegin, std::string>& models) {
    std::unordered_map<PyObject*, const std::string*> leads_to;
    const auto model_of = [&models](const StorageBegin& begin) {
      const auto place = models.find(begin);
      return place == models.end() ? nullptr : &place->second;
    };
    for (const bool is_trained : {true, false}) {
      for (const auto& [leaf, begin] : leaves_) {
        const std::string* const model = model_of(begin);
        if ((model == nullptr) != is_trained) continue;
        for (std::vector<PyObject*> waiting{leaf}; !waiting.empty();) {
          PyObject* const node = waiting.back();
          waiting.pop_back();
          if (leads_to.emplace(node, model).second) {
            waiting.insert(waiting.end(), users_[node].begin(), users_[node].end());
          }
        }
      }
    }
    for (Saved& each : saved) {
      const std::string* const model = leads_to[each.node];
      if (model == nullptr) {
        each.node = nullptr;
      } else {
        each.name += " of " + *model + " without an optimizer";
      }
    }
    std::stable_partition(saved.begin(), saved.end(), [](const Saved& each) { return each.node == nullptr; });
  }

  // The attributes of torch's classes in C that have what a node has saved.
  const std::vector<std::string>& attributes_saved(PyTypeObject* type) {
    const auto [place, is_new] = saved_attributes_.try_emplace(type);
    for (PyTypeObject* each = type; is_new && each != nullptr; each = each->tp_base) {
      for (PyGetSetDef* one = each->tp_getset; one != nullptr && one->name != nullptr; ++one) {
        if (std::strncmp(one->name, kRaw, std::strlen(kRaw)) == 0) place->second.emplace_back(one->name);
      }
    }
    return place->second;
  }

  void read_node(PyObject* node, uintptr_t kept_by) {
    const std::string kind = std::string(short_class_name(Py_TYPE(node))) + ".";
    for (const std::string& attribute : attributes_saved(Py_TYPE(node))) {
      const py::object value = attribute_of(node, attribute.c_str());
      if (!value) continue;  // the node has released its tensors
      const std::string name = kind + attribute.substr(std::strlen(kRaw));
      if (!PyTuple_Check(value.ptr()) && !PyList_Check(value.ptr())) {
        read_saved(name, value.ptr(), kept_by);
        continue;
      }
      for (const py::handle& saved : py::reinterpret_borrow<py::sequence>(value)) {
        read_saved(name, saved.ptr(), kept_by);
      }
    }
    if (!PyType_IsSubtype(Py_TYPE(node), reinterpret_cast<PyTypeObject*>(function_class_.ptr()))) return;
    const py::object attributes = attributes_of(node);
    if (!attributes) return;
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(attributes.ptr(), &position, &key, &value) != 0;) {
      if (PyUnicode_Check(key)) add(kind + text_of(key), value, kept_by);
    }
  }

  // What is kept: a tensor, or the tensors in what a hook of the program made of it.
  void read_saved(const std::string& name, PyObject* saved, uintptr_t kept_by) {
    if (saved == Py_None) return;
    const py::object kept = attribute_of(saved, "data");
    if (kept) {
      add(name, kept.ptr(), kept_by);
    } else {
      ++unread;
    }
  }

  // The arguments of a checkpointed region, and what was computed again by now.
  void read_checkpoint(PyObject* frame) {
    PyObject* const arguments = own_attribute(frame, "saved_args");
    for (Py_ssize_t i = 0; arguments != nullptr && PyList_Check(arguments) && i < PyList_GET_SIZE(arguments); ++i) {
      PyObject* const argument = PyList_GET_ITEM(arguments, i);
      if (std::strcmp(Py_TYPE(argument)->tp_name, "torch._C._autograd.SavedTensor") == 0) {
        read_saved("checkpoint.argument", argument, 0);
      }
    }
    PyObject* const computed = own_attribute(frame, "recomputed");
    if (computed == nullptr || !PyDict_Check(computed)) return;
    PyObject *key, *value;
    for (Py_ssize_t position = 0; PyDict_Next(computed, &position, &key, &value) != 0;) {
      if (PyObject* const by_reference = own_attribute(value, "data")) {  // a dict of weak keys
        add("checkpoint.recomputed", by_reference, 0);
      }
    }
  }

  void add(const std::string& name, PyObject* value, uintptr_t kept_by) {
    tensors_.for_each_tensor(value, [&](PyObject* tensor) {
      std::vector<TensorMemory> parts;
      const TensorReader::Result result = tensors_.read(tensor, parts, true);
      if (result >= TensorReader::Result::unknown) ++unread;
      for (const TensorMemory& part : parts) saved.push_back({name, part, kept_by, nullptr});
    });
  }

  uintptr_t first_of(uintptr_t graph) {
    for (auto place = joined_.find(graph); place != joined_.end(); place = joined_.find(graph)) {
      const auto next = joined_.find(place->second);
      if (next != joined_.end()) place->second = next->second;
      graph = place->second;
    }
    return graph;
  }

  // Takes note that two graphs are connected; returns how many nodes they have together.
  size_t join(uintptr_t one, uintptr_t other) {
    one = first_of(one);
    other = first_of(other);
    if (one != other) {
      joined_[other] = one;
      nodes_[one] += nodes_[other];
      nodes_.erase(other);
    }
    return nodes_[one];
  }

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

}  // namespace

Graphs read_graphs(TensorReader& reader, const py::object& torch, const GraphBounds& bounds,
                   const std::vector<PyObject*>& tensors, const std::vector<PyObject*>& functions,
                   const std::vector<PyObject*>& checkpoints, const std::map<StorageBegin, std::string>& models) {
  GraphReader graphs(reader, torch, bounds);
  graphs.read(tensors, functions, checkpoints, models);
  return std::move(graphs);
}

}  // namespace pytracer
