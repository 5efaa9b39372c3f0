#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "reading/history.h"
#include "reading/tables.h"

namespace pytracer::reading {

namespace {

// The interpreter is about to exit, so no Python code may be called.
struct ExitingError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file's texts, and the values that did not become rows (settings, annotations, the `pytracer`
// key), as Python objects.
//
// 1. Each text is one object, however many values refer to it.
// 2. A file's values may refer to each other many times and in circles. They become a tree of at
//    most as many values as the file has bytes.
// 3. Each object counts against the memory bound with the bytes that CPython takes for it.
// 4. A report in JSON repeats a text for each value that refers to it. The texts of all references
//    together have at most 50 times the file's bytes.
// 5. With the GIL. Throws ReadError.
class PythonValues {
 public:
  PythonValues(const Tables& tables, uint64_t file_bytes, Watch& watch)
      : tables_(tables), watch_(watch), values_left_(file_bytes + kSpareValues),
        text_left_(kTextTimes * file_bytes + kSpareText),
        memory_(memory_of(tables.heap, tables.strings, tables)) {
    for (uint32_t i = 0; i < tables.strings.size(); ++i) {
      const py::str text = to_str(tables.strings.at(i));
      count(kText + static_cast<uint64_t>(PyUnicode_GET_LENGTH(text.ptr())) *
                        static_cast<uint64_t>(PyUnicode_KIND(text.ptr())));
      strings.append(text);
    }
  }

  py::object make(Value value, int depth = 0) {
    if (values_left_-- == 0) damaged("values refer to each other too often");
    const Heap& heap = tables_.heap;
    switch (value.kind()) {
      case Kind::none: return py::none();
      case Kind::boolean: return py::bool_(value.number() != 0);
      case Kind::integer: return count(kNumber), py::int_(value.number());
      case Kind::wide_integer: return count(kLong), py::int_(heap.wide_integer(value));
      case Kind::long_integer:
        count(kLong);
        return (py::int_(heap.high_part(value)) << py::int_(64)) | py::int_(heap.low_part(value));
      case Kind::real: return count(kNumber), py::float_(heap.real(value));
      case Kind::string: {
        const uint64_t bytes = tables_.strings.at(value.index()).size();
        if (bytes > text_left_) damaged("values refer to long texts too often");
        text_left_ -= bytes;
        return strings[value.index()];
      }
      case Kind::object:
        if (!heap.is_resolved(value)) return make_object(value, depth);
        [[fallthrough]];
      default: return row_text_;
    }
  }

  py::list strings;  // all texts, by number

 private:
  static constexpr int kMostDepth = 100;
  static constexpr uint64_t kSpareValues = 10'000;
  static constexpr uint64_t kTextTimes = 50, kSpareText = 1 << 20;
  // Bytes of an object in CPython 3.11 to 3.14, rounded up. kItem is a place in a list.
  static constexpr uint64_t kText = 80, kNumber = 32, kLong = 48, kList = 96, kItem = 10;
  static constexpr uint64_t kDict = 240, kItemsInDict = 5, kFurtherItem = 100;

  py::object make_object(Value value, int depth) {
    if (depth == kMostDepth) damaged("values are nested too deeply");
    const Heap::Items& items = tables_.heap.items(value);
    if (tables_.heap.shape(value) == Shape::dict) {
      py::dict dict;
      count(kDict);
      for (size_t i = 0; i < items.size(); i += 2) {
        dict[make_key(items[i])] = make(items[i + 1], depth + 1);
        if (i / 2 >= kItemsInDict) count(kFurtherItem);
      }
      return dict;
    }
    py::list list;
    count(kList);
    for (const Value item : items) {
      list.append(make(item, depth + 1));
      count(kItem);
    }
    return tables_.heap.shape(value) == Shape::list ? py::object(list) : py::tuple(list);
  }

  // Only values of which few have one hash: many would make the dict slow. The hashes of integers are
  // their remainders of 2^61 - 1.
  py::object make_key(Value value) {
    switch (value.kind()) {
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::wide_integer:
      case Kind::string: return make(value);
      default: damaged("a dict has a key that is no text and no number");
    }
  }

  void count(uint64_t bytes) {
    memory_ += bytes;
    watch_.check_memory(memory_);
    watch_.tick();
  }

  const Tables& tables_;
  Watch& watch_;
  uint64_t values_left_;
  uint64_t text_left_;
  uint64_t memory_;
  const py::str row_text_{"<a row of the snapshot>"};  // stands for a value that became a row
};

py::slice to_slice(const RowRange& rows) {
  return py::slice(static_cast<py::ssize_t>(rows.begin), static_cast<py::ssize_t>(rows.end), 1);
}

py::dict read(const py::object& file, const py::object& allowed_bytes, const py::handle& in_memory) {
  using namespace py::literals;
  const GilScope scope;  // of the call, because readinto() and allowed_bytes() are Python code
  if (!scope && !py::type::handle_of(file).is(in_memory)) {
    throw ExitingError("the interpreter exits, and the content is not in memory");
  }
  PythonWatch watch(scope, allowed_bytes);
  Tables tables(watch);
  ByteReader in([&watch, readinto = py::object(file.attr("readinto"))](char* buffer, size_t size) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const auto wanted = static_cast<py::ssize_t>(size);
    const auto count = readinto(py::memoryview::from_memory(buffer, wanted)).cast<py::ssize_t>();
    if (count < 0 || count > wanted) {
      throw py::value_error("readinto() returned " + std::to_string(count) + " for a buffer of " +
                            std::to_string(wanted) + " bytes");
    }
    watch.update_bound();
    return static_cast<size_t>(count);
  });
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
  result["frames"] = to_arrays(tables.frames);
  result["pools"] = to_arrays(tables.pools);
  return result;
}

AllocatorRules to_rules(const py::dict& values) {
  AllocatorRules rules;
  rules.has_pools = values["has_pools"].cast<bool>();
  rules.are_known = values["are_known"].cast<bool>();
  rules.may_expand = values["may_expand"].cast<bool>();
  rules.aligns = values["aligns"].cast<bool>();
  rules.padding_bytes = values["padding_bytes"].cast<uint32_t>();
  rules.is_padding_known = values["is_padding_known"].cast<bool>();
  rules.max_split_bytes = values["max_split_bytes"].cast<uint64_t>();
  rules.divisions = values["divisions"].cast<decltype(rules.divisions)>();
  return rules;
}

py::tuple replay_arrays(const Input<uint8_t>& action, const Input<int64_t>& address,
                        const Input<int64_t>& size_bytes, const py::dict& state,
                        const py::dict& rules) {
  TraceView trace{static_cast<size_t>(action.size()), action.data(), nullptr, nullptr};
  StateView final_state{};
  final_state.segments = py::len(state["segment_address"]);
  final_state.blocks = py::len(state["block_address"]);
  Inputs inputs;
  inputs.add(trace.address, address, trace.size);
  inputs.add(trace.size_bytes, size_bytes, trace.size);
  inputs.add(state, final_state.segments, {"segment_address", "segment_size", "is_expandable"},
             final_state.segment_address, final_state.segment_size_bytes, final_state.is_expandable);
  inputs.add(state, final_state.blocks, {"block_address", "block_size", "requested", "is_pending"},
             final_state.block_address, final_state.block_size_bytes, final_state.requested_bytes,
             final_state.is_pending);
  const AllocatorRules allocator_rules = to_rules(rules);
  const GilScope scope;
  PythonWatch watch(scope);
  History history = outside_gil([&] { return replay(trace, final_state, allocator_rules, watch); });
  return py::make_tuple(to_arrays(history.usage), to_arrays(history.blocks), history.exact_from);
}

// The keys of _MESSAGES in pytracer/reading/reader.py, in the order of ReadError::Kind.
constexpr const char* kKindNames[] = {
    "truncated", "damaged", "refused", "not a snapshot", "not a pickle", "too large"};

}  // namespace

}  // namespace pytracer::reading

PYBIND11_MODULE(_reader, m) {
  using namespace pytracer::reading;
  m.doc() = "Reads snapshots into columns. See _reader.pyi.";
  pytracer::GilScope::watch_forks();
  py::module_::import("atexit").attr("register")(py::cpp_function(&pytracer::GilScope::close));
  register_simulate(m);
  // Never destroyed: pybind11 translates exceptions until the interpreter is gone.
  static const auto& read_error = *new py::exception<ReadError>(m, "ReadError");
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ReadError& error) {
      const py::tuple arguments = py::make_tuple(kKindNames[static_cast<size_t>(error.kind)], error.what());
      PyErr_SetObject(read_error.ptr(), arguments.ptr());
    }
  });
  py::register_local_exception<ExitingError>(m, "ExitingError", PyExc_RuntimeError);
  m.def("read", [in_memory = py::object(py::module_::import("io").attr("BytesIO")).release()](
      const py::object& file, const py::object& allowed_bytes) { return read(file, allowed_bytes, in_memory); },
      py::arg("file"), py::arg("allowed_bytes"));
  py::register_local_exception<ContradictionError>(m, "ContradictionError");
  m.def("replay", &replay_arrays, py::arg("action"), py::arg("address"), py::arg("size_bytes"), py::arg("state"),
        py::arg("rules"));
}
