#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "arrays.h"
#include "python_values.h"
#include "python_watch.h"
#include "reading/snapshot_reader.h"
#include "register.h"

namespace py = pybind11;

namespace pytracer::reading {

namespace {

// The interpreter is about to exit, so no Python code may be called.
struct ExitingError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A Python file.
class PythonSource final : public ByteSource {
 public:
  PythonSource(const py::object& file, PythonWatch& watch)
      : readinto_(file.attr("readinto")), watch_(watch) {}
  size_t read(char* buffer, size_t size) override {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const auto wanted = static_cast<py::ssize_t>(size);
    const auto count = readinto_(py::memoryview::from_memory(buffer, wanted)).cast<py::ssize_t>();
    if (count < 0 || count > wanted) {
      throw py::value_error("readinto() returned " + std::to_string(count) + " for a buffer of " +
                            std::to_string(wanted) + " bytes");
    }
    watch_.update_bound();
    return static_cast<size_t>(count);
  }

 private:
  py::object readinto_;
  PythonWatch& watch_;
};

py::slice to_slice(const RowRange& rows) {
  return py::slice(static_cast<py::ssize_t>(rows.begin), static_cast<py::ssize_t>(rows.end), 1);
}

py::dict read(const py::object& file, const py::object& allowed_bytes,
              const py::handle& in_memory) {
  using namespace py::literals;
  const GilScope scope;  // of the call, because readinto() and allowed_bytes() are Python code
  if (!scope && !py::type::handle_of(file).is(in_memory)) {
    throw ExitingError("the interpreter exits, and the content is not in memory");
  }
  PythonWatch watch(scope, allowed_bytes);
  Tables tables(watch);
  PythonSource source(file, watch);
  ByteReader in(source);
  {
    std::optional<py::gil_scoped_release> outside;
    if (scope) outside.emplace();
    read_snapshot(in, tables, watch);
  }
  PythonValues values(tables, in.position(), watch);
  py::list actions, unknown_keys, traces;
  py::dict result("allocator_settings"_a = values.make(tables.allocator_settings),
                  "external_annotations"_a = values.make(tables.external_annotations),
                  "pytracer"_a = values.make(tables.metadata), "strings"_a = values.strings);
  for (const uint32_t text : tables.actions.texts) actions.append(values.strings[text]);
  for (const auto& [row, key] : tables.unknown_keys) {
    unknown_keys.append(py::make_tuple(to_str(row), values.strings[key]));
  }
  for (const RowRange& trace : tables.traces) traces.append(to_slice(trace));
  result["actions"] = py::tuple(actions);
  result["unknown_keys"] = unknown_keys;
  result["traces"] = traces;
  result["host_device"] = tables.host_device;
  result["device_segments"] = to_slice(tables.device_segments);
  result["device_blocks"] = to_slice(tables.device_blocks);
  result["events"] = to_arrays(tables.events);
  result["allocations"] = to_arrays(tables.allocations);
  result["segments"] = to_arrays(tables.segments);
  result["blocks"] = to_arrays(tables.blocks);
  result["stack_ends"] = to_array(tables.stacks.ends);
  result["stack_frames"] = to_array(tables.stacks.frame);
  result["stack_backward"] =
      py::make_tuple(to_array(tables.stacks.forward), to_array(tables.stacks.node),
                     to_array(tables.stacks.phase), to_array(tables.stacks.is_exact));
  result["frames"] = py::make_tuple(to_array(tables.frames.filename), to_array(tables.frames.name),
                                    to_array(tables.frames.line));
  result["pools"] = to_array(tables.pools.numbers);
  return result;
}

// The keys of _MESSAGES in pytracer/reading/reader.py, in the order of ReadError::Kind.
constexpr const char* kKindNames[] = {
    "truncated", "damaged", "refused", "not a snapshot", "not a pickle", "too large"};

}  // namespace

void register_read(py::module_& m) {
  // Never destroyed: pybind11 translates exceptions until the interpreter is gone.
  static const auto& read_error = *new py::exception<ReadError>(m, "ReadError");
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ReadError& error) {
      const py::tuple arguments = py::make_tuple(kKindNames[static_cast<size_t>(error.kind)], std::string(error.what()));
      PyErr_SetObject(read_error.ptr(), arguments.ptr());
    }
  });
  py::register_local_exception<ExitingError>(m, "ExitingError", PyExc_RuntimeError);
  m.def(
      "read",
      [in_memory = py::object(py::module_::import("io").attr("BytesIO")).release()](
          const py::object& file, const py::object& allowed_bytes) {
        return read(file, allowed_bytes, in_memory);
      },
      py::arg("file"), py::arg("allowed_bytes"));
}

}  // namespace pytracer::reading
