// Reads what autograd knows on the calling thread. Compiled on the user's machine against the
// running torch's headers.
//
// 1. A node is never kept: the engine holds the node that it runs, so the reference counted up in
//    read() is never the last one.
// 2. The functions read what belongs to the calling thread, and a node's fields that nobody changes
//    any more.
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstdint>
#include <typeinfo>

#include "autograd_abi.h"
#include "hook_abi.h"

namespace {

void read(pytracer_autograd_state* state) {
  state->thread = at::RecordFunction::currentThreadId();
  state->next_sequence = at::sequence_number::peek();
  const auto node = torch::autograd::get_current_node();
  state->node = node.get();
  if (!node) return;
  state->node_type = typeid(*node).name();
  state->node_thread = node->thread_id();
  state->node_sequence = node->sequence_nr();
}

uint64_t next_sequence() { return at::sequence_number::peek(); }

const char* running_type() {
  const auto node = torch::autograd::get_current_node();
  return node ? typeid(*node).name() : nullptr;
}

int32_t runs_kernel() {
  return c10::GradMode::is_enabled() &&
         c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
}

int32_t has_output(const void* running_node, int32_t* is_on_cpu) {
  const auto& node = *static_cast<const torch::autograd::Node*>(running_node);
  if (node.num_inputs() == 0) return 0;
  const torch::autograd::InputMetadata& output = node.input_metadata(0);
  if (output.was_default_constructed() || output.is_nested_tensor()) return 0;
  *is_on_cpu = output.device().is_cpu();
  try {
    for (const c10::SymInt& length : output.shape_as_dim_vector()) {
      const auto known = length.maybe_as_int();
      if (!known || *known == 0) return 0;
    }
    return 1;
  } catch (...) {
    return 0;
  }
}

int32_t changes_shape(const void* running_node) {
  const auto& node = *static_cast<const torch::autograd::Node*>(running_node);
  if (node.num_inputs() == 0 || node.num_outputs() == 0) return 0;
  const torch::autograd::Edge& edge = node.next_edge(0);
  if (!edge.is_valid() || edge.input_nr >= edge.function->num_inputs()) return 0;
  const torch::autograd::InputMetadata& first = edge.function->input_metadata(edge.input_nr);
  const torch::autograd::InputMetadata& output = node.input_metadata(0);
  if (first.was_default_constructed() || first.is_nested_tensor()) return 0;
  if (output.was_default_constructed() || output.is_nested_tensor()) return 0;
  try {
    const auto from = first.shape_as_dim_vector(), to = output.shape_as_dim_vector();
    if (from.size() != to.size()) return 1;
    for (size_t i = 0; i < from.size(); ++i) {
      const auto before = from[i].maybe_as_int(), after = to[i].maybe_as_int();
      if (before && after && *before != *after) return 1;
    }
    return 0;
  } catch (...) {
    return 0;
  }
}

int32_t has_two_gradients(const void* running_node) {
  const auto& node = *static_cast<const torch::autograd::Node*>(running_node);
  return node.num_outputs() > 1 && node.next_edge(0).is_valid() && node.next_edge(1).is_valid();
}

uint64_t accumulates_into(const void* running_node, int32_t* device) {
  const auto& node = *static_cast<const torch::autograd::Node*>(running_node);
  if (typeid(node) != typeid(torch::autograd::AccumulateGrad)) return 0;
  const at::Tensor& tensor = static_cast<const torch::autograd::AccumulateGrad&>(node).variable;
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  try {
    const auto first = reinterpret_cast<uint64_t>(tensor.storage().data());
    *device = tensor.device().is_cpu() ? PYTRACER_CPU_DEVICE : tensor.device().index();
    if (first == 0) return 0;
    return first + static_cast<uint64_t>(tensor.storage_offset()) * tensor.element_size();
  } catch (...) {
    return 0;
  }
}

const pytracer_autograd autograd = {PYTRACER_AUTOGRAD_ABI, &read,       &next_sequence,
                                    &running_type,         &runs_kernel, &has_output,
                                    &changes_shape,        &has_two_gradients,
                                    &accumulates_into};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_autograd* pytracer_autograd_v1(
    void) {
  return &autograd;
}
