// The extension module pytracer._core. The files of this folder are the only ones of the core that
// know pybind11.
#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <set>
#include <string>

#include "frames/frame_walk.h"
#include "python/registers.h"
#include "record/clock.h"
#include "record/node_types.h"
#include "record/phases.h"
#include "record/recorder.h"
#include "session/registry.h"
#include "support/error.h"
#include "support/python/gil.h"
#include "support/wake_signal.h"

namespace pytracer {

namespace {

// Sets an exception of pytracer.errors. A path in its text need not be UTF-8: other bytes are escaped.
void set_error(const char* type, const char* text) {
  const auto message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace"));
  if (!message) return;  // out of memory, and Python's exception says so
  PyErr_SetObject(py::module_::import("pytracer.errors").attr(type).ptr(), message.ptr());
}

void translate_error(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const IoError& error) {
    const std::string text = std::string(error.what()) + ": " + std::strerror(error.errno_code);
    const py::object path = error.path.empty() ? py::none()
                                               : py::reinterpret_steal<py::object>(
                                                     PyUnicode_DecodeFSDefault(error.path.c_str()));
    const py::object arguments = py::make_tuple(error.errno_code, text, path);
    PyErr_SetObject(PyExc_OSError, arguments.ptr());  // which selects FileNotFoundError and the like
  } catch (const HookError& error) {
    set_error("HookError", error.what());
  } catch (const Error& error) {
    set_error("PytracerError", error.what());
  }
}

PyObject* g_oom_observer = nullptr;  // under the GIL; never released

// A pytracer_oom_fn. Hooks must not take the GIL under a device's lock, because a thread that has
// the GIL may wait for that lock. Here no lock is held: the CPU allocator has none, ours are free
// once the event is recorded, and torch takes the GIL in the same place for other devices' observers.
void report_oom(uint64_t requested_size, uint64_t total_size, uint64_t free_size) noexcept {
  const GilScope scope;
  if (!scope) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  if (g_oom_observer != nullptr) {
    const py::error_scope keep_pending_error;
    PyObject* result = PyObject_CallFunction(g_oom_observer, "iKKK", PYTRACER_CPU_DEVICE,
                                             static_cast<unsigned long long>(requested_size),
                                             static_cast<unsigned long long>(total_size),
                                             static_cast<unsigned long long>(free_size));
    if (result == nullptr) PyErr_WriteUnraisable(g_oom_observer);
    Py_XDECREF(result);
  }
  PyGILState_Release(state);
}

PyObject* g_call = nullptr;  // what call_when_seen() was given last; never destroyed

// Has the main thread call `call` soon after an event whose stack has this code object, once.
void call_when_seen(const py::object& code, const py::object& call) {
  Py_XSETREF(g_call, call.inc_ref().ptr());
  CodeWatch::start(code.ptr(), []() noexcept {
    Py_AddPendingCall([](void*) {
      PyObject* const result = PyObject_CallNoArgs(g_call);
      Py_XDECREF(result);
      return result != nullptr ? 0 : -1;  // an interrupt of the user
    }, nullptr);
  });
}

pytracer_event event_of(int device, uint64_t address, uint64_t size) {
  pytracer_event event{};
  event.device = static_cast<int16_t>(device);
  event.address = address;
  event.size = size;
  if (device != PYTRACER_CPU_DEVICE) event.ticks = now_ticks();  // an accelerator stamps its events
  return event;
}

}  // namespace

}  // namespace pytracer

PYBIND11_MODULE(_core, core) {
  using namespace pytracer;
  core.doc() = "pytracer's recorder. See _core.pyi.";
  GilScope::watch_forks();
  Registry::instance();  // made now, so that no fork comes in the middle of its construction
  core.attr("CPU_DEVICE") = PYTRACER_CPU_DEVICE;
  core.attr("HOST_DEVICE") = PYTRACER_HOST_DEVICE;
  core.attr("MAX_STACK_DEPTH") = kMaxStackDepth;
  py::register_exception_translator(&translate_error);
  register_tensors(core);
  register_view(core);
  register_session(core);
  core.def("attach_hook", [](const std::string& path) { return attach_hook(path, &report_oom); },
      py::arg("path"), py::call_guard<OutsideGil>());
  core.def("attach_autograd", &attach_autograd, py::arg("path"), py::call_guard<OutsideGil>());
  core.def("watch_autograd_threads", &watch_autograd_threads, py::call_guard<OutsideGil>());
  core.def("running_node", []() -> py::object {
    const pytracer_autograd* autograd = attached_autograd();
    pytracer_autograd_state state{};
    if (autograd != nullptr) autograd->read(&state);
    if (state.node == nullptr) return py::none();
    NodeTypes& types = NodeTypes::instance();
    return py::make_tuple(types.name(types.number_of(state.node_type)), state.node_thread, state.node_sequence);
  });
  core.def("observe_oom", [](py::object observer) { g_oom_observer = observer.release().ptr(); });
  core.def("record_oom", [](int device, uint64_t requested_size, uint64_t free_size) {
    OutsideGil outside;
    Registry::instance().record_oom(device, requested_size, free_size);
  });
  // The GIL is kept: the mutex is held for microseconds.
  core.def("enter_phase", [](const std::string& name) {
    const Phases::Entered entered = Phases::instance().enter(name);
    return py::make_tuple(entered.entry, entered.phase);
  });
  core.def("is_entered", [](uint64_t entry) { return Phases::instance().is_entered(entry); });
  core.def("phase_path", [](int64_t number) {
    const Phases& phases = Phases::instance();
    const size_t known = phases.numbers();
    if (number < 0 || static_cast<uint64_t>(number) > known) {
      throw py::index_error("no event has the phase " + std::to_string(number) + ": this process has entered " +
                            (known == 0 ? "none" : "1 to " + std::to_string(known)) + ", and 0 stands for none");
    }
    py::list path;
    for (auto phase = static_cast<uint16_t>(number); phase != 0; phase = phases.parent(phase)) {
      const std::string_view name = phases.name(phase);
      path.append(py::bytes(name.data(), name.size()));
    }
    path.attr("reverse")();
    return path;
  }, py::arg("number"));
  core.def("leave_phase", [](uint64_t entry) { Phases::instance().leave(entry); });
  core.def("frame_walk_problem", [] {
    const std::string problem = frame_walk_problem();
    return problem.empty() ? py::object(py::none()) : py::object(py::str(problem));
  });
  core.def("enable_stacks", [] {
    // Before the first walk, so that no destruction of a recorded code object is missed.
    watch_code(&Recorder::code_destroyed);
    Recorder::instance().set_walking(true);
  });
  core.def("prepare_for_exit", [] {
    GilScope::close();
    py::gil_scoped_release release;
    Recorder::instance().stop_walking();
  });
  core.def("call_when_seen", &call_when_seen);
  core.def("wake_event", &wake_event);
  core.def("has_wake_event", &has_wake_event);
  core.def("wake", &wake);
  core.def("watch_signal", &watch_signal, py::arg("number"));
  core.def("unwatch_signal", &unwatch_signal, py::arg("number"));
  core.def("has_signal_handler", &has_signal_handler, py::arg("number"));
  core.def("take_signals", [] {
    std::set<int> numbers;
    uint64_t signals = take_signals();
    for (int number = 1; signals != 0; ++number, signals >>= 1) {
      if (signals & 1) numbers.insert(number);
    }
    return numbers;
  });
  py::module_ testing = core.def_submodule("testing", "Events on demand, for tests and benchmarks.");
  testing.def("record", [](uint8_t action, uint64_t address, uint64_t size, int device) {
    if (action >= PYTRACER_ACTION_COUNT) throw Error("no such action");
    pytracer_event event = event_of(device, address, size);
    event.action = action;
    py::gil_scoped_release release;
    Recorder::record(&event);
  }, py::arg("action"), py::arg("address"), py::arg("size"), py::arg("device") = -1);
  testing.def("record_free", [](uint64_t address, uint64_t size, int device) {
    pytracer_event event = event_of(device, address, size);
    py::gil_scoped_release release;
    for (const uint8_t action : {PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED}) {
      event.action = action;
      Recorder::record(&event);
    }
  }, py::arg("address"), py::arg("size"), py::arg("device"));
  testing.def("record_pairs", [](uint64_t pairs, uint64_t address, int device) {
    pytracer_event event = event_of(device, address, 0);
    py::gil_scoped_release release;
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < pairs; ++i) {
      event.action = PYTRACER_ALLOC;
      event.size = 512;
      Recorder::record(&event);
      if (device == PYTRACER_CPU_DEVICE) {
        event.size = 0;  // the CPU allocator does not know the size of a free
      } else {
        event.action = PYTRACER_FREE_REQUESTED;
        Recorder::record(&event);
      }
      event.action = PYTRACER_FREE_COMPLETED;
      Recorder::record(&event);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }, py::arg("pairs"), py::arg("address"), py::arg("device") = -1);
}
