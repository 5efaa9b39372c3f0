#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <set>
#include <string>

#include "python/encode.h"
#include "python/gil.h"
#include "python/registers.h"
#include "snapshot/file_sink.h"
#include "snapshot/memory_sink.h"
#include "snapshot/snapshot.h"
#include "view/events.h"

namespace py = pybind11;

namespace pytracer {

void register_view(py::module_& core) {
  py::class_<View>(core, "View")
      .def(
          "write",
          [](const View& view, const py::bytes& path, const py::dict& metadata,
             const py::dict& devices) {
            const SnapshotExtras extras = encode_extras(metadata, devices);
            const std::string file = path;
            if (file.find('\0') != std::string::npos) throw py::value_error("embedded null byte");
            OutsideGil outside;
            FileSink sink(file);
            write_snapshot(view, extras, sink);
            sink.commit();
          },
          py::arg("path"), py::arg("metadata"), py::arg("devices"))
      .def(
          "to_bytes",
          [](const View& view, const py::dict& metadata, const py::dict& devices) {
            const SnapshotExtras extras = encode_extras(metadata, devices);
            MemorySink sink;
            {
              OutsideGil outside;
              write_snapshot(view, extras, sink);
            }
            return py::bytes(sink.bytes);
          },
          py::arg("metadata"), py::arg("devices"))
      .def_property_readonly(
          "overwritten",
          [](const View& view) {
            uint64_t events = 0;
            for (const DeviceView& device : view.devices) events += device.overwritten();
            return events;
          })
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
