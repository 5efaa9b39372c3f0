#include "simulator/simulate.h"

#include <optional>

#include "reading/python/bindings.h"

namespace pytracer::reading {

namespace {

simulator::Rules to_simulators_rules(const py::dict& values) {
  simulator::Rules rules;
  const auto set = [&values](auto& field, const char* name) {
    field = values[name].cast<std::decay_t<decltype(field)>>();
  };
  set(rules.padding_bytes, "padding_bytes");
  set(rules.max_split_bytes, "max_split_bytes");
  set(rules.max_rounding_bytes, "max_rounding_bytes");
  set(rules.large_segment_bytes, "large_segment_bytes");
  set(rules.large_page_bytes, "large_page_bytes");
  set(rules.collection_threshold, "collection_threshold");
  set(rules.waits_to_release, "waits_to_release");
  set(rules.expandable, "expandable");
  set(rules.range_factor, "range_factor");
  set(rules.range_bytes, "range_bytes");
  set(rules.pools_give_back, "pools_give_back");
  set(rules.divisions, "divisions");
  set(rules.limit_bytes, "limit_bytes");
  set(rules.device_bytes, "device_bytes");
  set(rules.total_bytes, "total_bytes");
  set(rules.alignment_bytes, "alignment_bytes");
  const auto tie = values["tie"].cast<std::string>();
  rules.tie = tie == "address"   ? simulator::Tie::by_address
              : tie == "segment" ? simulator::Tie::by_segment : simulator::Tie::by_creation;
  const auto check = [](bool is_valid, const char* name) {
    if (!is_valid) throw py::value_error(std::string(name) + " is out of range");
  };
  constexpr uint64_t most = simulator::kMostBytes;
  check(rules.padding_bytes <= 1 << 20, "padding_bytes");
  check(rules.large_segment_bytes > 0 && rules.large_segment_bytes <= most, "large_segment_bytes");
  check(rules.large_page_bytes >= 4096 && rules.large_page_bytes <= most, "large_page_bytes");
  check(rules.range_factor >= 0 && rules.range_factor <= 16, "range_factor");
  check(rules.range_bytes <= 16 * most, "range_bytes");
  check(rules.total_bytes <= most, "total_bytes");
  check(rules.collection_threshold >= 0 && rules.collection_threshold <= 1, "collection_threshold");
  return rules;
}

simulator::Start to_start(const py::dict& values, Inputs& inputs) {
  simulator::Start start;
  start.segments = py::len(values["address"]);
  start.blocks = py::len(values["block_segment"]);
  inputs.add(values, start.segments,
             {"address", "range_address", "size_bytes", "stream", "pool", "order", "is_small", "is_expandable"},
             start.address, start.range_address, start.size_bytes, start.stream, start.pool, start.order,
             start.is_small, start.is_expandable);
  inputs.add(values, start.blocks, {"block_segment", "block_size_bytes", "block_number", "block_order"},
             start.block_segment, start.block_size_bytes, start.block_number, start.block_order);
  return start;
}

py::dict simulate_arrays(const Input<uint8_t>& kind, const Input<int64_t>& block,
                         const Input<int64_t>& size_bytes, const Input<int64_t>& stream,
                         const Input<int64_t>& pool, const py::dict& rules, bool with_curve,
                         bool with_calls, bool continues, const std::optional<py::dict>& start) {
  using namespace py::literals;
  Inputs inputs;
  simulator::Requests requests{};
  requests.size = static_cast<size_t>(kind.size());
  requests.kind = kind.data();
  inputs.add(requests.block, block, requests.size);
  inputs.add(requests.size_bytes, size_bytes, requests.size);
  inputs.add(requests.stream, stream, requests.size);
  inputs.add(requests.pool, pool, requests.size);
  const simulator::Rules its_rules = to_simulators_rules(rules);
  const simulator::Options options{with_curve, with_calls, continues};
  const simulator::Start its_start = start ? to_start(*start, inputs) : simulator::Start{};
  const GilScope scope;
  PythonWatch watch(scope);
  simulator::Simulated result = outside_gil(
      [&] { return simulator::simulate(requests, its_rules, options, watch, start ? &its_start : nullptr); });
  const simulator::Counts& counts = result.counts;
  py::dict values("peak_reserved_bytes"_a = counts.peak_reserved_bytes,
                  "allocated_at_peak_bytes"_a = result.allocated_at_peak_bytes,
                  "device_allocs"_a = counts.device_allocs,
                  "device_frees"_a = counts.device_frees, "maps"_a = counts.maps,
                  "unmaps"_a = counts.unmaps, "retries"_a = counts.retries,
                  "fitted"_a = result.fitted);
  values["failed_request"] =
      result.failed_request < 0 ? py::object(py::none()) : py::int_(result.failed_request);
  values["oom_requests"] = to_array(result.oom_requests);
  if (with_curve) {
    values["reserved_bytes"] = to_array(result.reserved_bytes);
    values["allocated_bytes"] = to_array(result.allocated_bytes);
  }
  if (with_calls) {
    values["address"] = to_array(result.address);
    values["calls"] = py::make_tuple(to_array(result.call_request), to_array(result.call),
                                     to_array(result.call_address), to_array(result.call_bytes));
  }
  return values;
}

}  // namespace

void register_simulate(py::module_& m) {
  py::register_local_exception<simulator::RequestError>(m, "RequestError", PyExc_ValueError);
  m.def("simulate", &simulate_arrays, py::arg("kind"), py::arg("block"), py::arg("size_bytes"),
        py::arg("stream"), py::arg("pool"), py::arg("rules"), py::arg("with_curve") = false,
        py::arg("with_calls") = false, py::arg("continues") = false, py::arg("start") = py::none());
}

}  // namespace pytracer::reading
