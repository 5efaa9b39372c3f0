// The Python face of the reader; with csrc/bindings.cpp the only file that knows pybind11.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "byte_reader.h"
#include "history.h"
#include "pickle_machine.h"
#include "tables.h"

namespace py = pybind11;

namespace pytracer::reading {
namespace {

constexpr int kDeepest = 100;  // of nested values that become Python's

// A Python file, read with the GIL.
class PythonSource final : public ByteSource {
 public:
  explicit PythonSource(const py::object& file) : readinto_(file.attr("readinto")) {}
  size_t read(char* buffer, size_t size) override {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    const auto wanted = static_cast<py::ssize_t>(size);
    const auto got = readinto_(py::memoryview::from_memory(buffer, wanted)).cast<py::ssize_t>();
    if (got < 0 || got > wanted) throw py::value_error("readinto() returned nonsense");
    return static_cast<size_t>(got);
  }

 private:
  py::object readinto_;
};

// Hands the column's values over.
template <class T>
py::array_t<T> array(Column<T>& column) {
  const auto size = static_cast<py::ssize_t>(column.size());
  if (size == 0) return py::array_t<T>(0);
  T* values = column.release();
  return py::array_t<T>(size, values, py::capsule(values, [](void* data) { std::free(data); }));
}

py::str text(std::string_view utf8) {
  PyObject* made = PyUnicode_DecodeUTF8(utf8.data(), static_cast<py::ssize_t>(utf8.size()),
                                        "surrogatepass");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(made);
}

// What stayed as it was: settings, annotations, what pytracer tells of its file. A file's values may
// refer to each other, many times and in circles; they become a tree, of no more values than the
// file has bytes.
class PythonValues {
 public:
  PythonValues(const Tables& tables, uint64_t bytes) : tables_(tables), left_(bytes + kSpare) {}

  py::object make(Value value, int depth = 0) {
    if (left_-- == 0) damaged("values refer to each other too often");
    const Heap& heap = tables_.heap;
    switch (value.kind()) {
      case Kind::none: return py::none();
      case Kind::boolean: return py::bool_(value.number() != 0);
      case Kind::integer: return py::int_(value.number());
      case Kind::wide_integer: return py::int_(heap.wide_integer(value));
      case Kind::long_integer:
        return (py::int_(heap.high_part(value)) << py::int_(64)) | py::int_(heap.low_part(value));
      case Kind::real: return py::float_(heap.real(value));
      case Kind::string: return text(tables_.strings.at(value.index()));
      case Kind::object:
        if (!heap.is_resolved(value)) return object(value, depth);
        [[fallthrough]];
      default: return py::str("<a row of the snapshot>");
    }
  }

 private:
  static constexpr uint64_t kSpare = 10'000;

  py::object object(Value value, int depth) {
    if (depth == kDeepest) damaged("values are nested too deeply");
    const std::vector<Value>& items = tables_.heap.items(value);
    if (tables_.heap.shape(value) == Shape::dict) {
      py::dict dict;
      for (size_t i = 0; i < items.size(); i += 2) {
        dict[key(items[i])] = make(items[i + 1], depth + 1);
      }
      return dict;
    }
    py::list list;
    for (const Value each : items) list.append(make(each, depth + 1));
    return tables_.heap.shape(value) == Shape::list ? py::object(list) : py::tuple(list);
  }

  // Of few kinds: for others a file can choose what hash they have, and how long that takes.
  py::object key(Value value) {
    switch (value.kind()) {
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::string: return make(value);
      default: damaged("a dict has a key that is no text and no number");
    }
  }

  const Tables& tables_;
  uint64_t left_;
};

py::slice slice(const Range& rows) {
  return py::slice(static_cast<py::ssize_t>(rows.begin), static_cast<py::ssize_t>(rows.end), 1);
}

py::dict read_tables(const py::object& file) {
  using namespace py::literals;
  Tables tables;
  PythonSource source(file);
  ByteReader in(source);
  {
    const py::gil_scoped_release outside;
    tables.finish(PickleMachine(in, tables.heap, tables.strings, tables).run());
  }
  PythonValues values(tables, in.position());
  py::dict result("allocator_settings"_a = values.make(tables.allocator_settings),
                  "external_annotations"_a = values.make(tables.external_annotations),
                  "pytracer"_a = values.make(tables.about));
  py::list strings;
  for (uint32_t i = 0; i < tables.strings.size(); ++i) strings.append(text(tables.strings.at(i)));
  result["strings"] = strings;
  py::list actions;
  for (const std::string& each : tables.actions) actions.append(text(each));
  result["actions"] = py::tuple(actions);
  py::list unknown_keys;
  for (const std::string& each : tables.unknown_keys) unknown_keys.append(text(each));
  result["unknown_keys"] = py::tuple(unknown_keys);
  py::list traces;
  for (const Range& each : tables.traces) traces.append(slice(each));
  result["traces"] = traces;
  result["device_segments"] = slice(tables.device_segments);
  result["device_blocks"] = slice(tables.device_blocks);
  EventColumns& events = tables.events;
  result["events"] = py::make_tuple(
      array(events.action), array(events.address), array(events.size), array(events.stream),
      array(events.time), array(events.stack), array(events.pool), array(events.compile_context),
      array(events.user_metadata));
  SegmentColumns& segments = tables.segments;
  result["segments"] =
      py::make_tuple(array(segments.device), array(segments.address), array(segments.size),
                     array(segments.stream), array(segments.kind), array(segments.pool),
                     array(segments.is_expandable), array(segments.stack),
                     array(segments.first_block));
  BlockColumns& blocks = tables.blocks;
  result["blocks"] =
      py::make_tuple(array(blocks.segment), array(blocks.address), array(blocks.size),
                     array(blocks.requested), array(blocks.state), array(blocks.stack));
  result["stack_ends"] = array(tables.stacks.ends);
  result["stack_frames"] = array(tables.stacks.frame);
  result["frames"] = py::make_tuple(array(tables.frames.filename), array(tables.frames.name),
                                    array(tables.frames.line));
  result["pools"] = array(tables.pools);
  return result;
}

const char* name(ReadError::Kind kind) {
  switch (kind) {
    case ReadError::Kind::cut_short: return "cut short";
    case ReadError::Kind::damaged: return "damaged";
    case ReadError::Kind::refused: return "refused";
    case ReadError::Kind::not_a_snapshot: return "not a snapshot";
  }
  return "";
}

template <class T>
using Given = py::array_t<T, py::array::c_style>;

py::tuple replay_arrays(const Given<uint8_t>& action, const Given<int64_t>& address,
                        const Given<int64_t>& size_bytes, const py::dict& state,
                        const py::dict& rules) {
  const auto column = [&state](const char* name) { return state[name].cast<Given<int64_t>>(); };
  const auto flags = [&state](const char* name) { return state[name].cast<Given<bool>>(); };
  const auto segment_address = column("segment_address"), segment_size = column("segment_size");
  const auto block_address = column("block_address"), block_size = column("block_size");
  const auto requested = column("requested");
  const auto is_expandable = flags("is_expandable"), is_pending = flags("is_pending");
  const auto events = action.size(), segments = segment_address.size();
  const auto blocks = block_address.size();
  if (address.size() != events || size_bytes.size() != events || segment_size.size() != segments ||
      is_expandable.size() != segments || block_size.size() != blocks ||
      requested.size() != blocks || is_pending.size() != blocks) {
    throw py::value_error("columns of different lengths");
  }
  AllocatorRules known;
  known.has_pools = rules["has_pools"].cast<bool>();
  known.are_known = rules["are_known"].cast<bool>();
  known.may_expand = rules["may_expand"].cast<bool>();
  known.aligns = rules["aligns"].cast<bool>();
  known.padding_bytes = rules["padding_bytes"].cast<uint32_t>();
  known.is_padding_known = rules["is_padding_known"].cast<bool>();
  known.max_split_bytes = rules["max_split_bytes"].cast<uint64_t>();
  known.divisions = rules["divisions"].cast<decltype(known.divisions)>();
  const TraceView trace{static_cast<size_t>(events), action.data(), address.data(),
                        size_bytes.data()};
  const StateView last{static_cast<size_t>(segments), segment_address.data(), segment_size.data(),
                       is_expandable.data(),          static_cast<size_t>(blocks),
                       block_address.data(),          block_size.data(),
                       requested.data(),              is_pending.data()};
  History history = [&] {
    const py::gil_scoped_release outside;
    return replay(trace, last, known);
  }();
  Levels& levels = history.levels;
  Lifetimes& lives = history.blocks;
  return py::make_tuple(
      py::make_tuple(array(levels.requested_bytes), array(levels.allocated_bytes),
                     array(levels.active_bytes), array(levels.reserved_bytes),
                     array(levels.inactive_split_bytes), array(levels.largest_free_bytes),
                     array(levels.free_squares), array(levels.segments)),
      py::make_tuple(array(lives.address), array(lives.size_bytes), array(lives.requested_bytes),
                     array(lives.alloc_event), array(lives.free_requested_event),
                     array(lives.free_event), array(lives.is_sized), array(lives.state_block)),
      history.exact_from);
}

}  // namespace
}  // namespace pytracer::reading

PYBIND11_MODULE(_reader, m) {
  using namespace pytracer::reading;
  m.doc() = "Reads snapshots into columns. See _reader.pyi.";
  // Immortal, as pybind11's own: it is needed until the interpreter is gone.
  static const auto& read_error = *new py::exception<ReadError>(m, "ReadError");
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const ReadError& error) {
      PyErr_SetObject(read_error.ptr(),
                      py::make_tuple(name(error.kind), std::string(error.what())).ptr());
    }
  });
  m.def("read", &read_tables, py::arg("file"));
  py::register_local_exception<ContradictionError>(m, "ContradictionError");
  m.def("replay", &replay_arrays, py::arg("action"), py::arg("address"), py::arg("size_bytes"),
        py::arg("state"), py::arg("rules"));
}
