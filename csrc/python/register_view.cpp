#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/registers.h"
#include "record/recorder.h"
#include "snapshot/snapshot.h"
#include "support/python/gil.h"
#include "support/utf8.h"
#include "view/events.h"

namespace pytracer {

namespace {

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

std::string encode_value(const py::handle& value) {
  MemorySink sink;
  PickleWriter out(sink);
  encode(out, value);
  out.flush();
  return std::move(sink.bytes);
}

std::string encode_items(const py::handle& dict) {
  std::string items;
  for (const auto& item : py::reinterpret_borrow<py::dict>(dict)) {
    items += encode_value(item.first) + encode_value(item.second);
  }
  return items;
}

// Encodes what the Python side adds to a snapshot as pickle fragments. Raises TypeError for values that a
// snapshot cannot hold. `generated_code`: for a file and a line, a list of (filename, name, line), innermost
// first. `file_names`: for a file, the name that it gets.
SnapshotExtras encode_extras(const py::dict& metadata, const py::dict& devices,
                             const py::dict& generated_code, const py::dict& file_names) {
  if (!Recorder::instance().is_whole()) throw Error("this process was cloned from the one that recorded");
  SnapshotExtras extras{encode_items(metadata)};
  for (const auto& item : devices) {
    extras.device_items[item.first.cast<int>()] = encode_items(item.second);
  }
  for (const auto& item : generated_code) {
    std::vector<SourceFrame>& sources =
        extras.generated_code[item.first.cast<std::pair<std::string, int64_t>>()];
    for (const auto& source : item.second) {
      auto [filename, name, line] = source.cast<std::tuple<std::string, std::string, int64_t>>();
      sources.push_back({std::move(filename), std::move(name), line});
    }
  }
  for (const auto& item : file_names) {
    extras.file_names[item.first.cast<std::string>()] = item.second.cast<std::string>();
  }
  return extras;
}

// The lines that frames of stacks have in these files, or in any file whose name is UTF-8; at most
// `most` of them.
std::set<std::pair<std::string, int64_t>> lines_in(
    const View& view, const std::optional<std::set<std::string>>& filenames, size_t most) {
  std::set<std::pair<std::string, int64_t>> lines;
  std::unordered_map<std::string_view, bool> is_wanted;  // by file
  if (!view.stacks) return lines;
  StackTable::Generations generations = view.stacks->generations();
  generations.insert(generations.end(), view.final_stacks.begin(), view.final_stacks.end());
  for (const auto& tree : generations) {
    for (uint32_t id = 1; id <= tree->frame_count() && lines.size() < most; ++id) {
      const CallTree::Frame& frame = tree->frame(id);
      const std::string_view text = tree->text(tree->filename(frame));
      const auto [known, is_new] = is_wanted.emplace(text, false);
      const std::string name(text);
      if (is_new) known->second = filenames ? filenames->count(name) != 0 : is_utf8(name);
      if (known->second) lines.emplace(name, frame.line);
    }
  }
  return lines;
}

}  // namespace

void register_view(py::module_& core) {
  py::class_<View>(core, "View")
      .def("write",
          [](const View& view, int file, const py::bytes& path, const py::dict& metadata, const py::dict& devices,
             const py::dict& generated_code, const py::dict& file_names) {
            const SnapshotExtras extras = encode_extras(metadata, devices, generated_code, file_names);
            std::string name = path;
            OutsideGil outside;
            FileSink sink(file, std::move(name));
            write_snapshot(view, extras, sink);
          }, py::arg("file"), py::arg("path"), py::arg("metadata"), py::arg("devices"),
          py::arg("generated_code") = py::dict(), py::arg("file_names") = py::dict())
      .def("to_bytes",
          [](const View& view, const py::dict& metadata, const py::dict& devices, const py::dict& generated_code,
             const py::dict& file_names) {
            const SnapshotExtras extras = encode_extras(metadata, devices, generated_code, file_names);
            MemorySink sink;
            outside_gil([&] { write_snapshot(view, extras, sink); });
            return py::bytes(sink.bytes);
          }, py::arg("metadata"), py::arg("devices"), py::arg("generated_code") = py::dict(),
          py::arg("file_names") = py::dict())
      .def("keep_last_entries",
          [](View& view, uint64_t most) { outside_gil([&] { keep_last_entries(view, most); }); }, py::arg("most"))
      .def("lines_in", &lines_in, py::arg("filenames"), py::arg("most"))
      .def_property_readonly("overwritten", [](const View& view) {
        uint64_t events = 0;
        for (const DeviceView& device : view.devices) events += device.overwritten();
        return events;
      })
      .def_property_readonly("accelerator_entries",
          [](const View& view) { return outside_gil([&] { return accelerator_entries(view); }); })
      .def_property_readonly("used_devices", [](const View& view) {
        std::set<int> used;
        for (const DeviceView& device : view.devices) {
          if (device.capture.used) used.insert(device.device);
        }
        if (view.state) {
          for (const AllocatorState::Segment& segment : view.state->segments) {
            used.insert(segment.about.device);
          }
        }
        return used;
      })
      .def_property_readonly("has_events",
          [](const View& view) { return outside_gil([&] { return has_events(view); }); })
      .def_property_readonly("problem", [](const View& view) { return view.state ? view.state->problem : ""; });
}

}  // namespace pytracer
