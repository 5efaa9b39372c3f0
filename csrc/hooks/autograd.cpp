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

#include <cstdint>
#include <typeinfo>

#include "autograd_abi.h"

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

int32_t runs_kernel() {
  return c10::GradMode::is_enabled() &&
         c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
}

uint64_t output_size(const void* running_node, int32_t* is_on_cpu) {
  const auto& node = *static_cast<const torch::autograd::Node*>(running_node);
  if (node.num_inputs() == 0) return 0;
  const torch::autograd::InputMetadata& output = node.input_metadata(0);
  if (output.was_default_constructed() || output.is_nested_tensor()) return 0;
  *is_on_cpu = output.device().is_cpu();
  try {
    uint64_t size = output.dtype().itemsize();
    for (const c10::SymInt& length : output.shape_as_dim_vector()) {
      const auto known = length.maybe_as_int();
      if (!known) return 0;
      size *= static_cast<uint64_t>(*known);
    }
    return size;
  } catch (...) {
    return 0;
  }
}

const pytracer_autograd autograd = {PYTRACER_AUTOGRAD_ABI, &read, &runs_kernel, &output_size};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_autograd* pytracer_autograd_v1(
    void) {
  return &autograd;
}
