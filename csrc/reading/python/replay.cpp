#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "python_watch.h"
#include "reading/history.h"
#include "register.h"

namespace py = pybind11;

namespace pytracer::reading {

namespace {

template <class T>
using Input = py::array_t<T, py::array::c_style>;

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

py::tuple to_arrays(Usage& usage) {
  return py::make_tuple(to_array(usage.requested_bytes), to_array(usage.allocated_bytes),
                        to_array(usage.active_bytes), to_array(usage.reserved_bytes),
                        to_array(usage.inactive_split_bytes), to_array(usage.largest_free_bytes),
                        to_array(usage.free_squares), to_array(usage.segments));
}

py::tuple to_arrays(Lifetimes& blocks) {
  return py::make_tuple(to_array(blocks.address), to_array(blocks.size_bytes),
                        to_array(blocks.requested_bytes), to_array(blocks.alloc_event),
                        to_array(blocks.free_requested_event), to_array(blocks.free_event),
                        to_array(blocks.is_sized), to_array(blocks.state_block));
}

py::tuple replay_arrays(const Input<uint8_t>& action, const Input<int64_t>& address,
                        const Input<int64_t>& size_bytes, const py::dict& state,
                        const py::dict& rules) {
  const auto column = [&state](const char* name) { return state[name].cast<Input<int64_t>>(); };
  const auto flags = [&state](const char* name) { return state[name].cast<Input<bool>>(); };
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
  const TraceView trace{static_cast<size_t>(events), action.data(), address.data(),
                        size_bytes.data()};
  const StateView final_state{
      static_cast<size_t>(segments), segment_address.data(), segment_size.data(),
      is_expandable.data(),          static_cast<size_t>(blocks),
      block_address.data(),          block_size.data(),
      requested.data(),              is_pending.data()};
  const AllocatorRules allocator_rules = to_rules(rules);
  const GilScope scope;
  PythonWatch watch(scope);
  History history =
      outside_gil([&] { return replay(trace, final_state, allocator_rules, watch); });
  return py::make_tuple(to_arrays(history.usage), to_arrays(history.blocks), history.exact_from);
}

}  // namespace

void register_replay(py::module_& m) {
  py::register_local_exception<ContradictionError>(m, "ContradictionError");
  m.def("replay", &replay_arrays, py::arg("action"), py::arg("address"), py::arg("size_bytes"),
        py::arg("state"), py::arg("rules"));
}

}  // namespace pytracer::reading
