#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "holders/references.h"
#include "python/registers.h"
#include "record/recorder.h"
#include "session/session.h"
#include "support/python/gil.h"
#include "tensors/kept.h"
#include "tensors/model_copy.h"

namespace pytracer {

namespace {

// Before CPython 3.12, making an object may start the collector, which runs finalizers of the program.
class NoCollection {
 public:
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }
  NoCollection(NoCollection&&) = delete;

 private:
  const bool was_enabled_;
};

// The frames and the handled exceptions of all threads. Made before all objects are looked at, because
// an audit hook of the program may run.
struct ThreadsNow {
  const py::module_ sys = py::module_::import("sys");
  const py::dict frames = sys.attr("_current_frames")();
  const py::dict exceptions = sys.attr("_current_exceptions")();
};

// Whether more than `most` other threads run a backward pass. It replaces gradients, and releases what its
// graph keeps, without the GIL and without a lock that we could take. No code of the program runs here, so the
// answer is true as long as the GIL is held. A pass that code in C++ began is not seen.
bool are_others_in_backward(size_t most) {
  const NoCollection guard;
  size_t found = 0;
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  for (; state != nullptr; state = PyThreadState_Next(state)) {
    if (state == PyThreadState_Get()) continue;
    bool is_found = false;
    for (PyFrameObject* frame = PyThreadState_GetFrame(state); frame != nullptr;) {
      PyCodeObject* const code = PyFrame_GetCode(frame);  // an attribute would call audit hooks of the program
      is_found |= PyUnicode_CompareWithASCIIString(code->co_name, "_engine_run_backward") == 0;
      Py_DECREF(code);
      Py_DECREF(std::exchange(frame, PyFrame_GetBack(frame)));
    }
    found += is_found;
  }
  return found > most;
}

using Part = std::tuple<uint64_t, uint64_t, int, uint64_t>;  // as in pytracer/owners/copies.py

std::vector<Part> tuples(const std::vector<TensorMemory>& parts) {
  std::vector<Part> found;
  for (const TensorMemory& each : parts) found.emplace_back(each.address, each.size, each.device, each.begin);
  return found;
}

// `modules`: weak references. `optimizers`: weak references, the threads that step them or None, and from
// which parameter and state on they are copied. `uses`: whether the recorder notes what memory is used for.
py::tuple copy_models(const py::object& torch, const py::list& modules, const py::list& optimizers,
                      const std::tuple<bool, unsigned long, bool, bool, int, size_t>& rule, const py::dict& steppers,
                      bool uses) {
  const auto [is_read, thread, is_only_maker, is_in_backward, device, passes] = rule;
  TensorReader tensors(torch);
  ModelCopy::Use use;
  if (uses) {
    use = [](const TensorMemory& part, TensorRole role) { Recorder::note_use(part.device, part.begin, role); };
  }
  py::list found_modules, found_optimizers;
  const bool are_others = is_read && are_others_in_backward(passes);
  ModelCopy copy(tensors, {is_read, thread, is_only_maker, is_in_backward, device, are_others}, use);
  {
    const NoCollection guard;
    for (const py::handle& each : optimizers) {
      const auto known = py::reinterpret_borrow<py::tuple>(each);
      const py::object stepper = known[1];
      found_optimizers.append(copy.optimizer(py::object(known[0]).ptr(), stepper, known[2].cast<Py_ssize_t>(),
                                             known[3].cast<Py_ssize_t>()));
    }
    for (const py::handle& each : modules) found_modules.append(copy.module(each.ptr(), steppers));
  }
  copy.finish();
  return py::make_tuple(found_modules, found_optimizers, copy.unread());
}

// See tensors/kept.h. `kinds`: the classes of torch.utils.checkpoint's regions, modules and optimizers; None: not
// imported. Each of `owned` is (address, bytes, device). `session`, or None, knows live blocks: all, if a device has
// `allocated` as many bytes. `graph_passes`: graphs are read if no more other threads run a backward pass; None: they
// are not read. `models`: of parameters that no optimizer has. Nothing is looked at without `roots`
// if at most `least_part` of the live memory of each device has no owner.
py::dict kept_tensors(const py::object& torch, const std::array<py::object, 3>& kinds, const py::list& owned,
                      const std::set<int>& devices, Session* session, const std::map<int, uint64_t>& allocated,
                      const std::optional<size_t>& graph_passes, size_t nodes, double graph_seconds, size_t tensors,
                      size_t looked, bool has_hidden, double seconds, const std::vector<std::string>& hidden,
                      const std::vector<std::string>& unnamed, const py::list& roots,
                      const std::map<StorageBegin, std::string>& models, double least_part) {
  std::map<int, std::vector<LiveBlock>> live;
  if (session != nullptr) live = outside_gil([&] { return session->live_blocks(); });
  KeptOptions options{{}, models, devices, session != nullptr, least_part, {}, false, {nodes, graph_seconds}, tensors,
                      looked, has_hidden, {seconds}, {hidden, unnamed}, {}, kinds[0].ptr(), kinds[1].ptr(),
                      kinds[2].ptr()};
  for (const int device : devices) {
    uint64_t bytes = 0;
    for (const LiveBlock& each : live[device]) {
      bytes += each.size;
      options.blocks.push_back({{device, each.address}, each.address + each.size});
    }
    const bool is_cpu = device == PYTRACER_CPU_DEVICE;
    options.has_all_blocks &= is_cpu || (allocated.count(device) != 0 && allocated.at(device) == bytes);
  }
  for (const py::handle& each : owned) {
    const auto [address, bytes, device] = each.cast<std::tuple<uint64_t, uint64_t, int>>();
    options.owned.push_back({{device, address}, address + bytes});
  }
  for (const py::handle& each : roots) options.roots.push_back(each.ptr());
  TensorReader reader(torch);
  Kept kept;
  {
    const NoCollection guard;
    const ThreadsNow threads;
    options.reads_graphs = graph_passes && !are_others_in_backward(*graph_passes);
    kept = read_kept(reader, torch, std::move(options), threads.frames.ptr(), threads.exceptions.ptr());
  }
  py::list saved;
  for (const Graphs::Saved& each : kept.saved) {
    saved.append(py::make_tuple(each.memory.begin, each.memory.storage_size, each.memory.device, each.name));
  }
  const std::vector<std::pair<StorageBegin, uintptr_t>> graphs(kept.graphs.begin(), kept.graphs.end());
  using namespace py::literals;
  return py::dict("saved"_a = saved, "graphs"_a = graphs, "later"_a = kept.later, "holders"_a = kept.holders,
                  "tensors"_a = kept.tensors, "roots"_a = kept.roots, "unsearched"_a = kept.unsearched,
                  "has_all"_a = kept.has_all, "has_all_graphs"_a = kept.has_all_graphs,
                  "unread"_a = kept.unread, "futures"_a = kept.futures, "modules"_a = kept.modules,
                  "optimizers"_a = kept.optimizers, "likely"_a = kept.likely);
}

// The ids of the objects of each of these types, and weak references to them.
py::list live_references(const py::args& kinds) {
  std::vector<PyObject*> wanted;
  for (const py::handle& kind : kinds) wanted.push_back(kind.ptr());
  py::list found;
  const NoCollection guard;
  if (!frames_are_known()) wanted.clear();
  const ObjectsNow objects(wanted);
  for (const auto& instances : objects.instances) found.append(references_to(instances));
  return found;
}

// The parameters of a module, of which there is a weak reference; null: it is gone, or has none.
PyObject* parameters_of(const py::handle& reference) {
  PyObject* const module = referent(reference.ptr());
  PyObject* const parameters = module != nullptr ? own_attribute(module, "_parameters") : nullptr;
  return parameters != nullptr && PyDict_Check(parameters) ? parameters : nullptr;
}

// The id of a parameter; 0: there is none of this name.
uintptr_t parameter_number(const py::handle& module, const std::string& name) {
  PyObject* const parameters = parameters_of(module);
  return reinterpret_cast<uintptr_t>(parameters != nullptr ? PyDict_GetItemString(parameters, name.c_str()) : nullptr);
}

// The names of the classes of objects, of which there are weak references, and of their base classes.
std::set<std::string> class_names(const py::list& references) {
  std::set<std::string> found;
  std::set<PyTypeObject*> known;
  for (const py::handle& each : references) {
    PyObject* const object = referent(each.ptr());
    if (object == nullptr || !known.insert(Py_TYPE(object)).second) continue;
    PyObject* const order = Py_TYPE(object)->tp_mro;
    for (Py_ssize_t i = 0; order != nullptr && i < PyTuple_GET_SIZE(order); ++i) {
      found.insert(short_class_name(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(order, i))));
    }
  }
  return found;
}

// Whether modules with parameters, of which there are weak references, are in training mode.
std::vector<bool> training_modes(const py::list& references) {
  std::vector<bool> found;
  for (const py::handle& each : references) {
    PyObject* const parameters = parameters_of(each);
    if (parameters == nullptr) continue;
    PyObject *name, *parameter;
    bool has_one = false;
    for (Py_ssize_t position = 0; PyDict_Next(parameters, &position, &name, &parameter) != 0;) {
      has_one = has_one || parameter != Py_None;
    }
    if (has_one) found.push_back(own_attribute(referent(each.ptr()), "training") == Py_True);
  }
  return found;
}

}  // namespace

void register_tensors(py::module_& core) {
  py::class_<TensorCopy, std::shared_ptr<TensorCopy>>(core, "TensorCopy")
      .def_readonly("number", &TensorCopy::number)
      .def_property_readonly("parts", [](const TensorCopy& self) { return tuples(self.parts); })
      .def_property_readonly("gradient", [](const TensorCopy& self) { return tuples(self.gradient); })
      .def_property_readonly("main_gradient", [](const TensorCopy& self) { return tuples(self.main_gradient); })
      .def_readonly("is_gradient_unread", &TensorCopy::is_gradient_unread);
  core.def("copy_models", &copy_models);
  core.def("kept_tensors", &kept_tensors);
  core.def("live_references", &live_references);
  core.def("parameter_number", &parameter_number);
  core.def("class_names", &class_names);
  core.def("training_modes", &training_modes);
  core.def("is_alive", [](const py::handle& reference) { return referent(reference.ptr()) != nullptr; });
}

}  // namespace pytracer
