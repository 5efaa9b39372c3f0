#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "python/encode.h"
#include "python/registers.h"
#include "record/recorder.h"
#include "snapshot/file_sink.h"
#include "snapshot/memory_sink.h"
#include "snapshot/snapshot.h"
#include "support/python/gil.h"
#include "support/utf8.h"
#include "view/events.h"

namespace py = pybind11;

namespace pytracer {

namespace {

void check_process() {
  if (!Recorder::instance().is_whole()) throw Error("this process was cloned from the one that recorded");
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
      .def(
          "write",
          [](const View& view, int file, const py::bytes& path, const py::dict& metadata,
             const py::dict& devices, const py::dict& generated_code,
             const py::dict& file_names) {
            check_process();
            const SnapshotExtras extras =
                encode_extras(metadata, devices, generated_code, file_names);
            std::string name = path;
            OutsideGil outside;
            FileSink sink(file, std::move(name));
            write_snapshot(view, extras, sink);
          },
          py::arg("file"), py::arg("path"), py::arg("metadata"), py::arg("devices"),
          py::arg("generated_code") = py::dict(), py::arg("file_names") = py::dict())
      .def(
          "to_bytes",
          [](const View& view, const py::dict& metadata, const py::dict& devices,
             const py::dict& generated_code, const py::dict& file_names) {
            check_process();
            const SnapshotExtras extras =
                encode_extras(metadata, devices, generated_code, file_names);
            MemorySink sink;
            {
              OutsideGil outside;
              write_snapshot(view, extras, sink);
            }
            return py::bytes(sink.bytes);
          },
          py::arg("metadata"), py::arg("devices"),
          py::arg("generated_code") = py::dict(), py::arg("file_names") = py::dict())
      .def(
          "keep_last_entries",
          [](View& view, uint64_t most) { outside_gil([&] { keep_last_entries(view, most); }); },
          py::arg("most"))
      .def("lines_in", &lines_in, py::arg("filenames"), py::arg("most"))
      .def_property_readonly(
          "overwritten",
          [](const View& view) {
            uint64_t events = 0;
            for (const DeviceView& device : view.devices) events += device.overwritten();
            return events;
          })
      .def_property_readonly(
          "accelerator_entries",
          [](const View& view) { return outside_gil([&] { return accelerator_entries(view); }); })
      .def_property_readonly(
          "used_devices",
          [](const View& view) {
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
      .def_property_readonly(
          "has_events",
          [](const View& view) { return outside_gil([&] { return has_events(view); }); })
      .def_property_readonly(
          "problem", [](const View& view) { return view.state ? view.state->problem : ""; });
}

}  // namespace pytracer
