#include <pybind11/pybind11.h>

#include <cstring>
#include <exception>
#include <string>

#include "python/registers.h"
#include "support/error.h"

namespace py = pybind11;

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

void register_errors() {
  py::register_exception_translator(&translate_error);
}

}  // namespace pytracer
