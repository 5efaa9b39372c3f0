#include "holders/search.h"

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "holders/references.h"

namespace pytracer {

namespace {

constexpr int kFar = 1 << 20;         // the distance from a root, if none was found
constexpr int kUnnamed = 1 << 10;     // that of a root without a name: any path from a name is nearer
constexpr size_t kMaxOpaque = 10'000;
constexpr size_t kMaxEdges = 64;      // how many holders of one object are kept
constexpr size_t kLookInterval = 1024;  // how many objects are asked before the clock is
constexpr int kHashBits = 20;
constexpr int kMaxPasses = 12;
constexpr int kMaxNesting = 2;  // from a value to the arguments of a call that has it, and their cell
constexpr const char* kOfHooks = " through a tensor's hook";
constexpr double kPartForWalks = 0.75;  // of the time; in the rest, what was found is put into words
constexpr size_t kTextInterval = 64;    // how many texts are made before the clock is asked

struct Node {
  PyObject* object;
  int depth;             // how many holders it is away from a target
  int added;             // the pass in which it was found
  bool is_known = false; // a root, or all references to it were seen, and so all holders
  int distance = kFar;   // from a root
  size_t via = SIZE_MAX; // the holder that is nearest to a root; of a root, SIZE_MAX
  bool is_cut = false;   // not all of its holders are known
  bool is_opaque = false;
  Py_ssize_t references = 0;  // how many were seen
  std::vector<size_t> holders{};
};

class Search {
 public:
  Search(const std::vector<PyObject*>& targets, const std::vector<PyObject*>& objects, Roots roots,
         const SearchBounds& bounds)
      : roots_(std::move(roots)), targets_(targets), objects_(objects), bounds_(bounds),
        most_nodes_(3 * targets.size() + bounds.holders),
        future_types_{variable_of_module("torch._C", "Future"), variable_of_module("torch.futures", "Future")} {
    nodes_.reserve(targets.size());
    for (PyObject* each : targets) add(each, 0);  // which may come more than once
    first_holder_ = nodes_.size();
  }

  FoundHolders run() {
    while (pass_ < kMaxPasses && is_open()) {
      ++pass_;
      const size_t before = nodes_.size();
      walk();
      measure();
      if (is_late_) break;
      end_pass();
      if (nodes_.size() == before || has_all()) break;
    }
    std::vector<std::string> texts;
    for (PyObject* each : targets_) {
      const size_t target = numbers_.at(each);
      if (texts.size() % kTextInterval == 0) is_over_ = is_over_ || clock_.seconds() > bounds_.seconds;
      std::string& text = texts.emplace_back();
      if (is_over_) continue;
      text = nodes_[target].distance < kFar ? path_to(target) : cycle_of(target);
      bool may_be_value = false;
      if (text.empty() && is_unheld(target, may_be_value)) text = may_be_value ? kTemporary : kOnlyNative;
    }
    FoundHolders found{std::move(texts), !is_late_ && !is_over_};
    for (const size_t each : opaque_) {
      if (nodes_[each].distance < kFar && !is_over_) found.opaque.emplace_back(nodes_[each].object, path_to(each));
    }
    return found;
  }

 private:
  static size_t hash(PyObject* object) {
    return (reinterpret_cast<uintptr_t>(object) * 0x9E3779B97F4A7C15u) >> (64 - kHashBits);
  }

  size_t add(PyObject* object, int depth) {
    may_be_wanted_[hash(object)] = true;
    const auto [place, is_new] = numbers_.try_emplace(object, nodes_.size());
    if (!is_new) {
      nodes_[place->second].depth = std::min(nodes_[place->second].depth, depth);
      return place->second;
    }
    Node node{object, depth, pass_};
    if (roots_.contains(object) || is_always_root(object)) node.distance = 0;
    if (roots_.is_unnamed(object)) node.distance = kUnnamed;
    node.references = static_cast<Py_ssize_t>(roots_.references(object));
    node.is_known = node.distance == 0 || node.references == Py_REFCNT(object);
    unknown_ += !node.is_known;
    nodes_.push_back(std::move(node));
    return place->second;
  }

  // Whether there may be a holder that is not known.
  bool is_open() const { return unknown_ > 0 || wants_opaque_; }

  // A pass has met all holders of what was found before it.
  void end_pass() {
    wants_opaque_ = false;
    for (Node& each : nodes_) {
      if (each.is_known) continue;
      each.is_known = each.added < pass_;
      unknown_ -= each.is_known;
      if (!each.is_known) each.references = static_cast<Py_ssize_t>(roots_.references(each.object));
    }
  }

  bool has_all() const {
    // What C++ keeps has no holder, and after its first whole pass it gets none.
    const auto is_done = [this](const Node& each) {
      return each.distance < kUnnamed || (each.holders.empty() && !each.is_cut && each.is_known);
    };
    return std::all_of(nodes_.begin(), nodes_.begin() + first_holder_, is_done) &&
           std::all_of(opaque_.begin(), opaque_.end(), [&](size_t each) { return is_done(nodes_[each]); });
  }

  // Backwards first, because what holds an object is mostly older than it. A holder that is found is
  // wanted at once, so that one walk may follow a whole path.
  void walk() {
    const size_t count = objects_.size();
    unlisted_.clear();
    roots_.for_each([this](PyObject* root) { ask_unlisted(root); });
    for (size_t i = 0; i < count && !is_late_ && is_open(); ++i) {
      asked_ = objects_[pass_ % 2 != 0 ? count - 1 - i : i];
      asked_number_ = kNone;
      if (traverseproc traverse = Py_TYPE(asked_)->tp_traverse) traverse(asked_, &visit, this);
      if (i % kLookInterval == 0) is_late_ = clock_.seconds() > kPartForWalks * bounds_.seconds;
    }
  }

  static int visit(PyObject* object, void* search) {
    static_cast<Search*>(search)->meet(object);
    return 0;
  }

  // Takes note that the object that is asked refers to this one.
  void meet(PyObject* object) {
    ask_unlisted(object);
    if (!may_be_wanted_[hash(object)]) return;
    const auto place = numbers_.find(object);
    if (place == numbers_.end() || nodes_[place->second].is_known) return;
    const size_t number = place->second;
    if ((PyGen_CheckExact(asked_) || PyCoro_CheckExact(asked_) || PyAsyncGen_CheckExact(asked_)) &&
        is_executing(asked_)) {
      nodes_[number].is_cut = true;  // its variables are roots, and its function may be hidden
      return;
    }
    note_holder(number);
    nodes_[number].is_known = ++nodes_[number].references == Py_REFCNT(object);
    unknown_ -= nodes_[number].is_known;
  }

  // The collector does not know arrays of numpy, whose elements may be objects, nor dicts that have
  // nothing that it knows. And nothing tells what is in an opaque object, so its own holders are wanted.
  void ask_unlisted(PyObject* object) {
    auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    const bool is_array = type == array_type_;
    const bool is_dict = PyDict_CheckExact(object) && !PyObject_GC_IsTracked(object);
    if (PyCapsule_CheckExact(object) || type == future_types_[0] || type == future_types_[1]) note_opaque(object);
    if (array_type_ == nullptr || (!is_array && !is_dict) || !unlisted_.insert(object).second) return;
    PyObject* const asked = std::exchange(asked_, object);
    const size_t asked_number = std::exchange(asked_number_, kNone);
    if (is_array) {
      ask_array(object);
    } else {
      Py_TYPE(object)->tp_traverse(object, &visit, this);
    }
    asked_ = asked;
    asked_number_ = asked_number;
  }

  void note_opaque(PyObject* object) {
    if (PyCapsule_CheckExact(object) && PyCapsule_IsValid(object, kTensorCapsule) == 0) return;
    if (opaque_.size() >= kMaxOpaque || numbers_.count(object) != 0) return;
    opaque_.push_back(add(object, 0));
    nodes_[opaque_.back()].is_opaque = true;
  }

  void ask_array(PyObject* array) {
    PyObject* const base = PyObject_GetAttrString(array, "base");  // such as a tensor
    Py_XDECREF(base);  // the array has it
    if (base == nullptr) PyErr_Clear();
    if (base != nullptr && base != Py_None) return meet(base);  // a view has no references of its own
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();  // no array without gaps
      return;
    }
    if (view.format != nullptr && std::strcmp(view.format, "O") == 0) {
      auto* const elements = static_cast<PyObject**>(view.buf);
      for (Py_ssize_t i = 0; i < view.len / view.itemsize; ++i) {
        if (elements[i] != nullptr) meet(elements[i]);
      }
    }
    PyBuffer_Release(&view);
  }

  void note_holder(size_t number) {
    if (nodes_[number].distance == 0) return;
    if (asked_number_ == kNone) {
      const auto place = numbers_.find(asked_);
      if (place != numbers_.end()) asked_number_ = place->second;
    }
    const std::vector<size_t>& known = nodes_[number].holders;
    if (asked_number_ != kNone && std::find(known.begin(), known.end(), asked_number_) != known.end()) {
      return;
    }
    if (nodes_[number].depth >= bounds_.depth || known.size() >= kMaxEdges ||
        (asked_number_ == kNone && nodes_.size() >= most_nodes_)) {
      nodes_[number].is_cut = true;
      return;
    }
    // A dict counts as one with the object whose attributes it has, and all tracebacks of an
    // exception as one with it: there is one for each function that has failed.
    const bool counts = !PyDict_CheckExact(asked_) && !PyTraceBack_Check(asked_);
    asked_number_ = add(asked_, nodes_[number].depth + counts);
    nodes_[number].holders.push_back(asked_number_);
  }

  // Sets the distances from roots.
  void measure() {
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (size_t i = nodes_.size(); i-- > 0;) {
        for (const size_t holder : nodes_[i].holders) {
          // A list has a better name than the one of its method that is called later.
          PyObject* const object = nodes_[holder].object;
          const bool is_method = PyMethod_Check(object) || PyCFunction_Check(object);
          const int distance = nodes_[holder].distance + (is_method ? kUnnamed : 1);
          if (distance >= nodes_[i].distance) continue;
          nodes_[i].distance = distance;
          nodes_[i].via = holder;
          has_changed = true;
        }
      }
    }
  }

  std::string path_to(size_t target) {
    std::vector<size_t> chain{target};
    while (nodes_[chain.back()].via != kNone) chain.push_back(nodes_[chain.back()].via);
    PyObject* const root = nodes_[chain.back()].object;
    if (roots_.is_of_unnamed(root)) return kTemporary;
    const bool is_context = PyContext_CheckExact(root) && !roots_.contains(root);
    Roots::Name name;
    size_t last = chain.size() - 1;
    if (is_context) {
      // Its tree has no attributes.
      while (last > 1 && is_of_tree(nodes_[chain[last - 1]].object)) --last;
      name = {context_variable(root, nodes_[chain[last - 1]].object), "a context of contextvars"};
      --last;
    } else {
      name = roots_.name_of(root);
    }
    bool is_attributes = roots_.is_namespace(root);
    bool has_traceback = false;
    texts_.begin();
    std::string keeper;
    for (size_t i = last; i > 0; --i) {
      PyObject *const holder = nodes_[chain[i]].object, *const held = nodes_[chain[i - 1]].object;
      if (PyTraceBack_Check(holder)) continue;  // the exception or variable that has it names it
      has_traceback = has_traceback || PyTraceBack_Check(held);
      if (PyTraceBack_Check(held) && PyExceptionInstance_Check(holder)) {
        is_attributes = false;
      } else if (PythonFrame* const frame = frame_in(holder)) {
        keeper = ", which " + std::string(has_traceback ? "the traceback of " : "") + name.text() + " keeps" + keeper;
        has_traceback = false;
        const int slot = variable_of(frame, held);
        name.path = slot < 0 ? "a value" : variable_name(code_object(frame), slot);
        name.owner = function_name(code_object(frame)) + "()";
      } else if (i < chain.size() - 1 || !PyCell_Check(holder)) {
        texts_.append(name.path, holder, held, is_attributes);
      }  // else: a variable that an inner function uses, too
    }
    if (nodes_[target].is_opaque) name.path += " (inside a " + class_name(Py_TYPE(nodes_[target].object)) + ")";
    return name.text() + keeper;
  }

  static bool is_of_tree(PyObject* object) { return class_name(Py_TYPE(object)).rfind("hamt", 0) == 0; }

  // Whether no object refers to the target but the arguments of calls, and lists that nothing refers to,
  // so that code that runs has it, or C++. `may_be_value`: set if it may be code in Python.
  bool is_unheld(size_t target, bool& may_be_value, int nesting = 0) const {
    const Node& node = nodes_[target];
    if (node.is_cut || !node.is_known || nesting > kMaxNesting) return false;
    // Or code in C, as list(map(...)) has a list.
    may_be_value = may_be_value || !node.holders.empty() || roots_.may_be_value(node.object);
    return std::all_of(node.holders.begin(), node.holders.end(), [&](size_t each) {
      // An inner function shares the arguments of the outer one by a cell: Module._call_impl has one.
      PyObject* const holder = nodes_[each].object;
      const bool is_of_call = PyTuple_CheckExact(holder) || PyList_CheckExact(holder) ||
                              PyDict_CheckExact(holder) || PyCell_Check(holder);
      return is_of_call && is_unheld(each, may_be_value, nesting + 1);
    });
  }

  // Whether only objects that hold each other hold the target; "": something else may.
  std::string cycle_of(size_t target) {
    std::vector<size_t> waiting{target}, seen{target};
    bool has_hooks = false;
    std::vector<bool> is_seen(nodes_.size());
    is_seen[target] = true;
    while (!waiting.empty()) {
      const Node& node = nodes_[waiting.back()];
      waiting.pop_back();
      // The graph of a tensor refers to its hooks, too, which the collector does not know.
      const bool is_of_hooks = PyODict_CheckExact(node.object) && Py_REFCNT(node.object) == node.references + 1 &&
                               !node.holders.empty() && node.holders[0] < first_holder_;
      has_hooks |= is_of_hooks;
      if (node.is_cut || !node.is_known || (Py_REFCNT(node.object) != node.references && !is_of_hooks)) return "";
      if (--cycles_left_ < 0) return "";
      for (const size_t holder : node.holders) {
        if (is_seen[holder]) continue;
        is_seen[holder] = true;
        seen.push_back(holder);
        waiting.push_back(holder);
      }
    }
    // The object of a class of the program says most, then a function, else the first.
    std::string found;
    for (int kind = 0; kind < 3 && found.empty(); ++kind) {
      for (size_t i = seen.size() > 1 ? 1 : 0; i < seen.size() && found.empty(); ++i) {
        PyObject* const object = nodes_[seen[i]].object;
        const bool is_instance = PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) != 0;
        if (kind == 2 || (kind == 1 ? PyFunction_Check(object) : is_instance)) found = cycle_from(seen[i]);
      }
    }
    return "a reference cycle" + (found.empty() ? "" : " of " + found) + (has_hooks ? kOfHooks : kGarbage);
  }

  // How an object refers to itself: "Node.children[0].parent"; "": it does not.
  const std::string& cycle_from(size_t first) {
    const auto [place, is_new] = cycles_.try_emplace(first);
    if (!is_new) return place->second;
    std::unordered_map<size_t, size_t> held;  // by holder
    std::vector<size_t> waiting{first};
    for (size_t i = 0; i < waiting.size() && held.count(first) == 0 && --cycles_left_ >= 0; ++i) {
      for (const size_t holder : nodes_[waiting[i]].holders) {
        if (held.try_emplace(holder, waiting[i]).second) waiting.push_back(holder);
      }
    }
    if (held.count(first) == 0) return place->second;
    PyObject* const object = nodes_[first].object;
    const bool is_function = PyFunction_Check(object);
    std::string path = is_function ? text_of(reinterpret_cast<PyFunctionObject*>(object)->func_qualname) + "()"
                                   : class_name(Py_TYPE(object));
    size_t holder = first;
    int length = 0;
    texts_.begin();
    for (bool is_attributes = false; !is_function && ++length <= bounds_.depth;) {
      const size_t next = held.at(holder);
      std::string further = path;
      texts_.append(further, nodes_[holder].object, nodes_[next].object, is_attributes);
      if (!further.empty() && further.back() == ')') break;  // the rest has no names
      path = further;
      holder = next;
      if (holder == first) break;
    }
    return place->second = path;
  }

  static constexpr size_t kNone = SIZE_MAX;
  Roots roots_;
  ReferenceTexts texts_;
  int cycles_left_ = 1'000'000;                     // how many more objects of cycles are looked at
  const std::vector<PyObject*>& targets_;
  const std::vector<PyObject*>& objects_;
  const SearchBounds bounds_;
  const ThreadClock clock_;
  const size_t most_nodes_;
  size_t first_holder_ = 0;  // of the nodes: those before it are targets
  PyObject* const future_types_[2];
  std::unordered_map<size_t, std::string> cycles_;  // by node
  std::vector<size_t> opaque_;                      // the nodes of objects whose values only C++ sees
  std::vector<Node> nodes_;                         // the targets come first
  std::unordered_map<PyObject*, size_t> numbers_;   // of the nodes
  std::vector<bool> may_be_wanted_ = std::vector<bool>(size_t{1} << kHashBits);  // by hash
  int pass_ = 0;
  size_t unknown_ = 0;                              // how many nodes are not known
  bool wants_opaque_ = bounds_.wants_opaque;        // the first pass goes to the end
  bool is_late_ = false;                            // the passes were cut short
  bool is_over_ = false;                            // the texts were
  PyObject* const array_type_ = variable_of_module("numpy", "ndarray");
  std::unordered_set<PyObject*> unlisted_;          // those that were asked in this pass
  PyObject* asked_ = nullptr;                       // what is asked for its references now
  size_t asked_number_ = kNone;
};

}  // namespace

FoundHolders find_holders(const std::vector<PyObject*>& targets, const std::vector<PyObject*>& objects,
                          PyObject* frames, PyObject* exceptions, const Folders& folders, const SearchBounds& bounds) {
  return Search(targets, objects, Roots(frames, exceptions, folders), bounds).run();
}

}  // namespace pytracer
