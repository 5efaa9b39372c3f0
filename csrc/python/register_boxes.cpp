#include <pybind11/pybind11.h>

#include <string>

#include "python/registers.h"
#include "restore/restored_view.h"
#include "session/registry.h"
#include "support/python/gil.h"

namespace py = pybind11;

namespace pytracer {

void register_boxes(py::module_& core) {
  core.def("open_box", [](int file) { outside_gil([&] { Registry::instance().open_box(file); }); },
           py::arg("file"));
  core.def(
      "describe_box",
      [](const std::string& text) { outside_gil([&] { Registry::instance().describe_box(text); }); },
      py::arg("text"));
  core.def("box_was_lost", &Box::was_lost);
  core.attr("MAX_DESCRIPTION") = BoxNotes::kMaxDescription;
  py::class_<BoxReader>(core, "Box")
      .def(py::init<int>(), py::arg("file"))
      .def_property_readonly("description", [](const BoxReader& box) { return py::bytes(description_of(box)); })
      .def_property_readonly("is_cut", &BoxReader::is_cut)
      .def_property_readonly("last_step", &last_step)
      .def_property_readonly("devices",
                             [](const BoxReader& box) {
                               using namespace py::literals;
                               py::list devices;
                               for (const DeviceNow& now : devices_now(box)) {
                                 devices.append(py::dict("device"_a = now.device, "recorded"_a = now.recorded,
                                                         "allocated_bytes"_a = now.allocated_bytes,
                                                         "peak_bytes"_a = now.peak_bytes,
                                                         "reserved_bytes"_a = now.reserved_bytes));
                               }
                               return devices;
                             })
      .def(
          "view",
          [](const BoxReader& box, uint32_t stack_depth, uint8_t context, bool forward_stacks,
             bool is_same_boot) {
            return outside_gil([&] {
              return restored_view(
                  box, {stack_depth, static_cast<Context>(context), forward_stacks, is_same_boot});
            });
          },
          py::arg("stack_depth"), py::arg("context"), py::arg("forward_stacks"), py::arg("is_same_boot"));
}

}  // namespace pytracer
