#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/python/gil.h"
#include "python/registers.h"
#include "record/recorder.h"
#include "session/registry.h"
#include "view/owners.h"

namespace pytracer {

namespace {

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
  for (const py::handle& item : owners) {
    const auto owner = py::reinterpret_borrow<py::tuple>(item);
    const auto category = owner[3].cast<uint8_t>();
    const auto rule = owner[4].cast<uint8_t>();
    if (category >= kCategories || rule >= kRules) throw py::index_error("no such category or rule");
    made.push_back({owner[0].cast<uint64_t>(), owner[1].cast<uint64_t>(), owner[2].cast<int>(),
                    static_cast<Category>(category), static_cast<Rule>(rule), utf8(owner[5])});
  }
  std::vector<Holder> held;
  for (const py::handle& item : holders) {
    const auto holder = py::reinterpret_borrow<py::tuple>(item);
    held.push_back({holder[0].cast<uint64_t>(), holder[1].cast<int>(), utf8(holder[2])});
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

py::tuple to_tuple(const char* const* names, size_t count) {
  return py::tuple(py::cast(std::vector<std::string>(names, names + count)));
}

}  // namespace

void register_owners(py::module_& core) {
  core.attr("CATEGORIES") = to_tuple(kCategoryNames, kCategories);
  core.attr("CATEGORY_RULES") = to_tuple(kRuleNames, kRules);
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
}

}  // namespace pytracer
