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
#include "session/registry.h"
#include "snapshot/snapshot.h"
#include "support/python/gil.h"
#include "support/utf8.h"

namespace pytracer {

namespace {

void encode(PickleWriter& out, const py::handle& value) {
  if (value.is_none()) return out.none();
  if (py::isinstance<py::bool_>(value)) return out.boolean(value.cast<bool>());
  if (py::isinstance<py::float_>(value)) return out.real(value.cast<double>());
  if (py::isinstance<py::int_>(value)) {
    const int64_t number = PyLong_AsLongLong(value.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      throw py::type_error("a snapshot cannot hold an integer of more than 64 bits");
    }
    out.integer(number);
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
// snapshot cannot hold. `parts`: what the file says of itself and of its devices; for a file and a line of generated
// code, a list of (filename, name, line), innermost first; for a file, the name that it gets.
SnapshotExtras encode_extras(const py::args& parts) {
  if (!Recorder::instance().is_whole()) throw Error("this process was cloned from the one that recorded");
  if (parts.size() < 2 || parts.size() > 4) throw py::type_error("two to four parts are expected");
  const auto part = [&](size_t i) { return i < parts.size() ? py::dict(parts[i]) : py::dict(); };
  SnapshotExtras extras{encode_items(part(0))};
  for (const auto& item : part(1)) {
    extras.device_items[item.first.cast<int>()] = encode_items(item.second);
  }
  for (const auto& item : part(2)) {
    std::vector<SourceFrame>& sources =
        extras.generated_code[item.first.cast<std::pair<std::string, int64_t>>()];
    for (const auto& source : item.second) {
      auto [filename, name, line] = source.cast<std::tuple<std::string, std::string, int64_t>>();
      sources.push_back({std::move(filename), std::move(name), line});
    }
  }
  for (const auto& item : part(3)) {
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

std::string utf8(const py::handle& text) {
  return text.attr("encode")("utf-8", "replace").cast<std::string>();
}

// Each of `owners` is (address, bytes, device, category, rule, name), and each of `holders` is
// (address, device, text).
std::shared_ptr<Owners> make_owners(std::vector<DeviceLog::Mark> marks, const py::list& owners,
                                    uint64_t unread, uint64_t unread_gradients,
                                    bool has_all_modules, const py::list& holders,
                                    const py::str& unheld, uint64_t unsearched) {
  std::vector<Owner> made;
  made.reserve(owners.size());
  for (const py::handle& each : owners) {
    const auto [address, bytes, device, category, rule, name] =
        each.cast<std::tuple<uint64_t, uint64_t, int, uint8_t, uint8_t, py::object>>();
    const bool is_known = category < kCategoryNames.size() && rule < kRuleNames.size();
    if (!is_known) throw py::index_error("no such category or rule");
    made.push_back({address, bytes, device, static_cast<Category>(category), static_cast<Rule>(rule), utf8(name)});
  }
  std::vector<Holder> held;
  for (const py::handle& each : holders) {
    const auto [address, device, text] = each.cast<std::tuple<uint64_t, int, py::object>>();
    held.push_back({address, device, utf8(text)});
  }
  const Owners::Missing missing{unread, unread_gradients, !has_all_modules, unsearched};
  return std::make_shared<Owners>(std::move(marks), std::move(made), std::move(held), missing, utf8(unheld));
}

// What make_owners() needs of each workspace, without categories and names: (address, device, whether
// it is cuBLASLt's), and how many are missing.
std::pair<py::list, uint64_t> workspaces() {
  const auto now = outside_gil([] { return Registry::instance().workspaces(); });
  py::list result;
  for (const pytracer_workspace& each : now.found) {
    result.append(py::make_tuple(each.address, each.device, each.is_lt != 0));
  }
  return {std::move(result), now.unread};
}

}  // namespace

void register_view(py::module_& core) {
  core.attr("CATEGORIES") = py::tuple(py::cast(kCategoryNames));
  core.attr("CATEGORY_RULES") = py::tuple(py::cast(kRuleNames));
  // The GIL is kept: the device's lock is held for a fraction of a microsecond.
  core.def("note_use", [](int device, uint64_t address, uint8_t role) {
    if (role >= kTensorRoles) throw py::index_error("no such role");
    Recorder::note_use(device, address, static_cast<TensorRole>(role));
  }, py::arg("device"), py::arg("address"), py::arg("role"));
  core.def("workspaces", &workspaces);
  py::class_<DeviceLog::Mark>(core, "Mark")
      .def_readonly("device", &DeviceLog::Mark::device)
      .def_readonly("used", &DeviceLog::Mark::used);
  py::class_<Owners, std::shared_ptr<Owners>>(core, "Owners")
      .def(py::init(&make_owners), py::arg("marks"), py::arg("owners"), py::arg("unread"),
           py::arg("unread_gradients"), py::arg("has_all_modules"), py::arg("holders"),
           py::arg("unheld"), py::arg("unsearched") = 0);
  py::class_<View>(core, "View")
      .def("write", [](const View& view, int file, const py::bytes& path, const py::args& parts) {
        const SnapshotExtras extras = encode_extras(parts);
        std::string name = path;
        OutsideGil outside;
        FileSink sink(file, std::move(name));
        write_snapshot(view, extras, sink);
      })
      .def("to_bytes", [](const View& view, const py::args& parts) {
        const SnapshotExtras extras = encode_extras(parts);
        MemorySink sink;
        outside_gil([&] { write_snapshot(view, extras, sink); });
        return py::bytes(sink.bytes);
      })
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
