#include "bindings.h"
#include "reading/history.h"

namespace pytracer::reading {

namespace {

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
  inputs.add(final_state.segment_address, state["segment_address"], final_state.segments);
  inputs.add(final_state.segment_size_bytes, state["segment_size"], final_state.segments);
  inputs.add(final_state.is_expandable, state["is_expandable"], final_state.segments);
  inputs.add(final_state.block_address, state["block_address"], final_state.blocks);
  inputs.add(final_state.block_size_bytes, state["block_size"], final_state.blocks);
  inputs.add(final_state.requested_bytes, state["requested"], final_state.blocks);
  inputs.add(final_state.is_pending, state["is_pending"], final_state.blocks);
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
