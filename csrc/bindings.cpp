// The Python face of the core; the only file that knows pybind11.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "error.h"
#include "frame_walk.h"
#include "hook_loader.h"
#include "owner.h"
#include "pickle_writer.h"
#include "snapshot.h"
#include "wake_signal.h"

namespace py = pybind11;

namespace pytracer {
namespace {

// The scopes whose thread will ask for the GIL. Once the interpreter is about to exit there must be
// none: a thread that asks then is ended in the middle of a C++ destructor, which ends the process.
class GilScopes {
 public:
  // Any thread, with or without the GIL. False: too late, do without.
  static bool begin() noexcept {
    ++count_;
    if (!ended_) return true;
    --count_;
    return false;
  }
  static void finish() noexcept { --count_; }

  // With the GIL: no scope begins from now on, and those that did have ended, or a minute has passed
  // (a file system may hang).
  static void end() {
    ended_ = true;
    py::gil_scoped_release release;
    for (int wait = 0; count_ > 0 && wait < 60'000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Once. A forked child has none of the threads that were in a scope.
  static void watch_forks() { pthread_atfork(nullptr, nullptr, [] { count_ = 0; }); }

 private:
  static inline std::atomic<bool> ended_{false};
  static inline std::atomic<int> count_{0};
};

// The GIL released for a scope; or held on to, once the interpreter is about to exit.
class OutsideGil {
 public:
  OutsideGil() {
    if (GilScopes::begin()) release_.emplace();
  }
  ~OutsideGil() {
    if (release_) {
      release_.reset();
      GilScopes::finish();
    }
  }
  OutsideGil(const OutsideGil&) = delete;
  OutsideGil& operator=(const OutsideGil&) = delete;

 private:
  std::optional<py::gil_scoped_release> release_;
};

PyObject* g_oom_observer = nullptr;  // under the GIL; never released

// A pytracer_oom_fn. Taking the GIL is no breach of the hooks' rule: that is for those who run under
// a device's lock, for which a thread that has the GIL may wait. Here no lock is held, neither the
// CPU allocator's, which has none, nor ours: the event is recorded. Nor does torch allocate under a
// lock of its own for which it waits with the GIL: an operation that allocates may run Python at any
// time (dispatch modes, hooks), and torch's observers of other devices take the GIL here as well.
void tell_oom(uint64_t requested_size, uint64_t total_size, uint64_t free_size) noexcept {
  if (!GilScopes::begin()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  if (g_oom_observer != nullptr) {
    const py::error_scope interrupted;
    PyObject* result = PyObject_CallFunction(g_oom_observer, "iKKK", PYTRACER_CPU_DEVICE,
                                             static_cast<unsigned long long>(requested_size),
                                             static_cast<unsigned long long>(total_size),
                                             static_cast<unsigned long long>(free_size));
    if (result == nullptr) PyErr_WriteUnraisable(g_oom_observer);
    Py_XDECREF(result);
  }
  PyGILState_Release(state);
  GilScopes::finish();
}

// For whatever takes the control lock. Who holds that may wait for the allocator's, and who holds
// that one for the GIL: so nobody waits for the control lock with the GIL held.
template <class Work>
auto outside_gil(Work work) {
  OutsideGil outside;
  return work();
}

struct OutsideGilDeleter {
  void operator()(Owner* owner) const {
    outside_gil([&] { delete owner; });
  }
};

// A row of events(). Documented field by field in pytracer/tracer.py.
struct EventRecord {
  uint64_t sequence;
  int64_t time_ns;
  uint64_t address;
  uint64_t size_bytes;
  uint64_t stream;
  uint64_t autograd_sequence;
  uint32_t stack;
  uint32_t alloc_stack;
  uint64_t pool_high;
  uint64_t pool_low;
  uint32_t step;
  uint16_t phase;
  uint8_t action;
  int8_t device;
};

py::array_t<EventRecord> events_of(Owner& owner) {
  std::vector<EventRecord> rows;
  {
    OutsideGil outside;
    const View view = owner.events();
    for (const DeviceView& device : view.devices) {
      const std::vector<Event> events = copy_events(device);
      uint64_t sequence = device.cut.end - events.size();
      auto next_step = device.steps.begin();
      uint32_t step = 0;
      for (const Event& event : events) {
        while (next_step != device.steps.end() && next_step->begin <= sequence) {
          step = next_step++->number;
        }
        const Pool pool = device.cut.names->pool(event.pool);
        rows.push_back({sequence++, WallClock::to_wall_ns(*device.clock, event.ticks),
                        event.address, event.size, event.stream, event.autograd_sequence,
                        visible_stack(event, view.options.context),
                        view.options.context < Context::alloc ? 0 : event.alloc_stack, pool.high,
                        pool.low, step, event.phase, event.action, event.device});
      }
    }
    if (view.devices.size() > 1) {
      std::stable_sort(rows.begin(), rows.end(), [](const EventRecord& a, const EventRecord& b) {
        return a.time_ns < b.time_ns;
      });
    }
  }
  return py::array_t<EventRecord>(static_cast<py::ssize_t>(rows.size()), rows.data());
}

// The frames of a stack: [(filename, name, line), ...], innermost first.
py::list frames_of(Owner& owner, uint32_t stack) {
  py::list frames;
  const std::shared_ptr<StackTable> table = outside_gil([&] { return owner.stacks(); });
  const uint32_t depth = outside_gil([&] { return owner.options().stack_depth; });
  if (stack == 0 || !table || stack > table->stats().stacks) return frames;
  StackTable& stacks = *table;
  stacks.resolve();
  const StackTable::Stack& kept = stacks.stack(stack);
  const auto text = [&](uint32_t id) {
    const std::string& utf8 = stacks.string(id);
    return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
        utf8.data(), static_cast<py::ssize_t>(utf8.size()), "surrogatepass"));
  };
  for (uint32_t i = 0; i < kept.frames && i < depth; ++i) {
    const StackTable::Frame& frame = stacks.frame(stacks.frame_id(kept, i));
    frames.append(
        py::make_tuple(text(stacks.filename(frame)), text(stacks.name(frame)), frame.line));
  }
  return frames;
}

void encode(PickleWriter& out, const py::handle& value) {
  if (value.is_none()) {
    out.none();
  } else if (py::isinstance<py::bool_>(value)) {
    out.boolean(value.cast<bool>());
  } else if (py::isinstance<py::int_>(value)) {
    const int64_t number = PyLong_AsLongLong(value.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      throw py::type_error("a snapshot cannot hold an integer of more than 64 bits");
    }
    out.integer(number);
  } else if (py::isinstance<py::float_>(value)) {
    out.real(value.cast<double>());
  } else if (py::isinstance<py::str>(value)) {
    out.string(value.attr("encode")("utf-8", "surrogatepass").cast<std::string>());
  } else if (py::isinstance<py::dict>(value)) {
    out.dict();
    for (const auto& item : py::reinterpret_borrow<py::dict>(value)) {
      encode(out, item.first);
      encode(out, item.second);
    }
    out.set_items();
  } else if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    out.list();
    uint64_t items = 0;
    for (const auto& item : value) {
      out.next_item(items);
      encode(out, item);
    }
    out.append_items();
  } else {
    throw py::type_error("a snapshot cannot hold a value of type " +
                         py::type::of(value).attr("__name__").cast<std::string>());
  }
}

std::string encoded(const py::handle& value) {
  MemorySink sink;
  PickleWriter out(sink);
  encode(out, value);
  out.flush();
  return std::move(sink.bytes);
}

std::string encoded_items(const py::handle& dict) {
  std::string items;
  for (const auto& item : py::reinterpret_borrow<py::dict>(dict)) {
    items += encoded(item.first) + encoded(item.second);
  }
  return items;
}

SnapshotExtras extras_of(const py::dict& about, const py::dict& devices) {
  SnapshotExtras extras{encoded_items(about)};
  for (const auto& item : devices) {
    extras.device_items[item.first.cast<int>()] = encoded_items(item.second);
  }
  return extras;
}

// Lines and names are read with the GIL.
View resolved(View view) {
  if (view.stacks) view.stacks->resolve();
  return view;
}

py::dict stats_of(Owner& owner) {
  const Owner::Stats stats = outside_gil([&] { return owner.stats(); });
  py::list devices;
  for (const Owner::DeviceStats& device : stats.devices) {
    using namespace py::literals;
    devices.append(py::dict(
        "device"_a = device.device, "recorded"_a = device.recorded, "held"_a = device.held,
        "overwritten"_a = device.overwritten, "unknown_frees"_a = device.counts.unknown_frees,
        "ring_bytes"_a = device.ring_bytes, "max_ring_bytes"_a = device.max_ring_bytes,
        "live_blocks"_a = device.live_blocks, "live_block_bytes"_a = device.live_block_bytes,
        "live_dropped"_a = device.counts.live_dropped,
        "labels_dropped"_a = device.counts.labels_dropped,
        "live_table_bytes"_a = device.live_table_bytes,
        "max_live_table_bytes"_a = device.max_live_table_bytes));
  }
  py::dict stacks;
  stacks["stacks"] = stats.stacks.stacks;
  stacks["frames"] = stats.stacks.frames;
  stacks["codes"] = stats.stacks.codes;
  stacks["truncated"] = stats.stacks.truncated;
  stacks["dropped"] = stats.stacks.dropped;
  stacks["bytes"] = stats.stacks.bytes;
  stacks["max_bytes"] = stats.stacks.max_bytes;
  py::dict result;
  result["devices"] = devices;
  result["stacks"] = stacks;
  return result;
}

// Events on demand, without an allocator: for tests and benchmarks.
void register_testing(py::module_ core) {
  py::module_ m = core.def_submodule("testing", "Events on demand, for tests and benchmarks.");
  m.def(
      "record",
      [](uint8_t action, uint64_t address, uint64_t size, int device) {
        pytracer_event event{};
        event.action = action;
        event.address = address;
        event.size = size;
        event.device = static_cast<int16_t>(device);
        py::gil_scoped_release release;
        Recorder::record(&event);
      },
      py::arg("action"), py::arg("address"), py::arg("size"), py::arg("device") = -1);
  m.def(
      "record_pairs",
      [](uint64_t pairs, uint64_t address, int device) {
        pytracer_event event{};
        event.device = static_cast<int16_t>(device);
        event.address = address;
        event.ticks = device == PYTRACER_CPU_DEVICE ? 0 : 1;  // an accelerator stamps its events
        py::gil_scoped_release release;
        const auto start = std::chrono::steady_clock::now();
        for (uint64_t i = 0; i < pairs; ++i) {
          event.action = PYTRACER_ALLOC;
          event.size = 512;
          Recorder::record(&event);
          if (device == PYTRACER_CPU_DEVICE) {
            event.size = 0;  // its allocator does not know
          } else {
            event.action = PYTRACER_FREE_REQUESTED;
            Recorder::record(&event);
          }
          event.action = PYTRACER_FREE_COMPLETED;
          Recorder::record(&event);
        }
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      },
      py::arg("pairs"), py::arg("address"), py::arg("device") = -1,
      "Records alloc+free pairs, as the device's hook would, without the GIL; returns the seconds "
      "it took.");
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const IoError& error) {
    const py::object arguments =
        py::make_tuple(error.errno_code,
                       std::string(error.what()) + " the snapshot failed: " +
                           std::strerror(error.errno_code),
                       py::reinterpret_steal<py::object>(
                           PyUnicode_DecodeFSDefault(error.path.c_str())));
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
  } catch (const HookError& error) {
    PyErr_SetString(py::module_::import("pytracer.errors").attr("HookError").ptr(), error.what());
  } catch (const Error& error) {
    PyErr_SetString(py::module_::import("pytracer.errors").attr("PytracerError").ptr(),
                    error.what());
  }
}

}  // namespace
}  // namespace pytracer

PYBIND11_MODULE(_core, m) {
  using namespace pytracer;
  m.doc() = "pytracer's recorder. See _core.pyi.";
  py::register_exception_translator(&translate);
  GilScopes::watch_forks();
  PYBIND11_NUMPY_DTYPE(EventRecord, sequence, time_ns, address, size_bytes, stream,
                       autograd_sequence, stack, alloc_stack, pool_high, pool_low, step, phase,
                       action, device);
  m.attr("CPU_DEVICE") = PYTRACER_CPU_DEVICE;
  m.attr("MAX_STACK_DEPTH") = kMaxStackDepth;

  py::class_<View>(m, "View")
      .def(
          "write",
          [](const View& view, const py::bytes& path, const py::dict& about,
             const py::dict& devices) {
            const SnapshotExtras extras = extras_of(about, devices);
            const std::string file = path;
            if (file.find('\0') != std::string::npos) throw py::value_error("embedded null byte");
            OutsideGil outside;
            FileSink sink(file);
            write_snapshot(view, extras, sink);
            sink.commit();
          },
          py::arg("path"), py::arg("about"), py::arg("devices"))
      .def(
          "to_bytes",
          [](const View& view, const py::dict& about, const py::dict& devices) {
            const SnapshotExtras extras = extras_of(about, devices);
            MemorySink sink;
            {
              OutsideGil outside;
              write_snapshot(view, extras, sink);
            }
            return py::bytes(sink.bytes);
          },
          py::arg("about"), py::arg("devices"))
      .def_property_readonly("overwritten",
                             [](const View& view) {
                               uint64_t events = 0;
                               for (const auto& each : view.devices) events += each.overwritten();
                               return events;
                             })
      .def_property_readonly(
          "used_devices",
          [](const View& view) {
            std::set<int> used;
            for (const DeviceView& device : view.devices) {
              if (device.cut.used) used.insert(device.device);
            }
            if (view.state) {
              for (const auto& each : view.state->segments) used.insert(each.about.device);
            }
            return used;
          })
      .def_property_readonly(
          "has_events",
          [](const View& view) { return outside_gil([&] { return has_events(view); }); })
      .def_property_readonly(
          "problem", [](const View& view) { return view.state ? view.state->problem : ""; });

  py::class_<Owner, std::unique_ptr<Owner, OutsideGilDeleter>>(m, "Owner")
      .def(py::init([](std::vector<int> devices, uint32_t max_entries, uint32_t stack_depth,
                       uint64_t max_stack_bytes, uint8_t context) {
             return std::unique_ptr<Owner, OutsideGilDeleter>(
                 new Owner(OwnerOptions{std::move(devices), max_entries, stack_depth,
                                        max_stack_bytes, static_cast<Context>(context)}));
           }),
           py::arg("devices"), py::arg("max_entries"), py::arg("stack_depth"),
           py::arg("max_stack_bytes"), py::arg("context"))
      .def("start", &Owner::start, py::arg("history") = true, py::call_guard<OutsideGil>())
      .def("pause", &Owner::pause, py::call_guard<OutsideGil>())
      .def(
          "change",
          [](Owner& owner, uint32_t max_entries, uint32_t stack_depth, uint8_t context) {
            owner.change(max_entries, stack_depth, static_cast<Context>(context));
          },
          py::arg("max_entries"), py::arg("stack_depth"), py::arg("context"),
          py::call_guard<OutsideGil>())
      .def("stop", &Owner::stop, py::call_guard<OutsideGil>())
      .def("clear", &Owner::clear, py::call_guard<OutsideGil>())
      .def(
          "view",
          [](Owner& owner, bool history, uint16_t phase) {
            return resolved(outside_gil([&] { return owner.view(history, phase); }));
          },
          py::arg("history") = true, py::arg("phase") = 0)
      .def(
          "turn",
          [](Owner& owner, bool history, uint32_t step) {
            return resolved(outside_gil([&] { return owner.turn(history, step); }));
          },
          py::arg("history"), py::arg("step"))
      .def("begin_step", &Owner::begin_step, py::arg("number"), py::call_guard<OutsideGil>())
      .def("events", &events_of)
      .def("frames", &frames_of, py::arg("stack"))
      .def("stats", &stats_of)
      .def_property_readonly("recording", &Owner::recording)
      .def_property_readonly("is_ours", &Owner::is_ours);

  // The mutex is held for microseconds.
  m.def("enter_phase", [](const std::string& name) {
    const Phases::Entered entered = Phases::instance().enter(name);
    return py::make_tuple(entered.entry, entered.phase);
  });
  m.def("is_entered", [](uint64_t entry) { return Phases::instance().is_entered(entry); });
  m.def(
      "phase_path",
      [](uint16_t phase) {
        py::list path;
        for (const Phases& phases = Phases::instance(); phase != 0; phase = phases.parent(phase)) {
          const std::string_view name = phases.name(phase);
          path.append(py::bytes(name.data(), name.size()));
        }
        path.attr("reverse")();
        return path;
      },
      py::arg("number"));
  m.def("leave_phase", [](uint64_t entry) { Phases::instance().leave(entry); });
  m.def(
      "attach_hook", [](const std::string& path) { return attach_hook(path, &tell_oom); },
      py::arg("path"), py::call_guard<OutsideGil>());
  m.def(
      "observe_oom",
      [](py::object observer) { g_oom_observer = observer.release().ptr(); },
      py::arg("observer"));
  m.def("wake_event", &wake_event);
  m.def("wake", &wake);
  m.def("watch_signal", &watch_signal, py::arg("number"));
  m.def("unwatch_signal", &unwatch_signal, py::arg("number"));
  m.def("take_signals", [] {
    std::set<int> numbers;
    uint64_t signals = take_signals();
    for (int number = 1; signals != 0; ++number, signals >>= 1) {
      if (signals & 1) numbers.insert(number);
    }
    return numbers;
  });
  m.def("frame_walk_problem", [] {
    const std::string problem = frame_walk_problem();
    return problem.empty() ? py::object(py::none()) : py::object(py::str(problem));
  });
  m.def(
      "enable_stacks",
      [] {
        // Destructions are watched from before the first walk on.
        Recorder::instance().set_walking(watch_code(&Recorder::code_destroyed));
      },
      "Records stacks from now on. Only where frame_walk_problem() is None.");
  m.def(
      "prepare_for_exit",
      [] {
        GilScopes::end();
        py::gil_scoped_release release;
        Recorder::instance().stop_walking();
      },
      "Waits for calls that are outside the GIL, then ends all walks. Before thread states go.");
  m.def(
      "hold_for_fork", [] { Recorder::instance().hold_for_fork(); }, py::call_guard<OutsideGil>());
  m.def("release_after_fork", [] { Recorder::instance().release_after_fork(); });
  register_testing(m);
}
