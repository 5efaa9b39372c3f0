// The extension module pytracer._core. The files of this folder are the only ones of the core that
// know pybind11.
#include <cstring>
#include <exception>
#include <string>

#include "python/registers.h"
#include "session/registry.h"
#include "support/error.h"
#include "support/python/gil.h"

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
  register_recorder(core);
}
