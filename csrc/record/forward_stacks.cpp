#include "record/forward_stacks.h"

#include <algorithm>
#include <mutex>

namespace pytracer {

constexpr uint64_t kNoSequence = UINT64_MAX;
constexpr uint64_t kMostSkipped = 4096;  // nodes without an allocation of their own, in a row

ForwardStacks::ForwardStacks() {
  ParameterNumbers::make();
  for (uint32_t i = 0; i < kTables; ++i) tables_[i].nodes = &nodes_[size_t{i} * kNodes];
}

uint32_t ForwardStacks::attribute(StackTable& stacks, ThreadSlot& slot, const pytracer_event& allocation,
                                  uint32_t own) noexcept {
  const uint64_t era = stacks.era(), seed = stacks.seed();
  if (seed != seed_of(stacks, slot, own)) return kUnknownStack;  // else the era is that of the walk
  ForwardCursor& cursor = slot.forward;
  pytracer_autograd_state state{};
  if (may_run_node(slot, own) || cursor.thread == 0) {
    autograd_.read(&state);
  } else {
    state.thread = cursor.thread;
    state.next_sequence = autograd_.next_sequence();
  }
  const bool has_new_nodes = state.next_sequence != cursor.next || state.thread != cursor.thread;
  if (!has_new_nodes) cursor.period = period_.load(std::memory_order_relaxed);
  if (state.node == nullptr) {
    if (has_new_nodes) {
      const uint16_t phase = slot.phase.load(std::memory_order_relaxed);
      note_new_nodes(state, slot, allocation, own, true, phase, era);
    }
    return own;
  }
  ForwardCursor::Last& last = cursor.last;
  const uint32_t parameter = state.node_sequence == kNoSequence ? parameter_of(state.node) : 0;
  if (parameter != last.parameter || state.node_sequence != last.sequence || state.node_thread != last.thread ||
      state.node_type != last.node_type || own != last.own || seed != last.seed) {
    NodeTypes& types = NodeTypes::instance();
    const uint32_t type = types.number_of(state.node_type);
    Forward forward{};
    if (state.node_sequence != kNoSequence) {
      forward = find(state.node_thread, state.node_sequence, era);
      forward.is_exact = forward.is_exact && fits(forward, state.node, types.output(type));
    }
    const uint32_t id = stacks.intern_backward({own, forward.stack, type, forward.is_exact, forward.phase, parameter});
    if (id == kUnknownStack) return id;
    last = {state.node_type, state.node_thread, state.node_sequence, seed, own, id, parameter,
            forward.stack, forward.phase, forward.is_exact};
  }
  if (has_new_nodes) {
    // Python code that the node runs makes forward calls of its own. Otherwise the node makes the
    // nodes of its own derivative, and passes its forward stack on.
    const bool is_own = own != 0 && !stacks.is_engine(own);
    const uint16_t phase = is_own ? slot.phase.load(std::memory_order_relaxed) : last.phase;
    note_new_nodes(state, slot, allocation, is_own ? own : last.forward, is_own || last.is_exact,
                   phase, era);
  }
  return last.id;
}

uint32_t ForwardStacks::note_free(StackTable& stacks, ThreadSlot& slot, const char* node_type, uint32_t own,
                                  uint64_t seed) noexcept {
  uint32_t id = own;
  if (node_type != nullptr) {
    id = stacks.intern_backward({own, 0, NodeTypes::instance().number_of(node_type), false});
    if (id == kUnknownStack) return id;
  }
  slot.forward.last_free = {node_type, seed, own, id};
  return id;
}

__attribute__((noinline)) uint32_t ForwardStacks::parameter_of(const void* node) const noexcept {
  int32_t device = PYTRACER_CPU_DEVICE;
  const uint64_t address = autograd_.accumulates_into(node, &device);
  return address != 0 ? ParameterNumbers::instance()->number_of(address, device) : 0;
}

bool ForwardStacks::fits(const Forward& forward, const void* node,
                         NodeTypes::Output output) const noexcept {
  if (output == NodeTypes::Output::unknown) return false;
  const bool is_new = output == NodeTypes::Output::allocated ||
      (output == NodeTypes::Output::keeps_both && autograd_.has_two_gradients(node) != 0) ||
      autograd_.changes_shape(node) != 0;
  if (!is_new) return false;
  int32_t is_on_cpu = 0;
  return autograd_.has_output(node, &is_on_cpu) != 0 && (is_on_cpu != 0) == forward.is_on_cpu;
}

void ForwardStacks::note_new_nodes(const pytracer_autograd_state& state, ThreadSlot& slot,
                                   const pytracer_event& allocation, uint32_t stack, bool is_exact,
                                   uint16_t phase, uint64_t era) noexcept {
  ForwardCursor& cursor = slot.forward;
  const uint64_t period = period_.load(std::memory_order_relaxed);
  // Otherwise an earlier allocation of the same call may not have been seen.
  const bool is_first = cursor.thread == state.thread && cursor.period == period;
  if (stack != 0 && state.next_sequence != 0) {
    is_exact = is_exact && is_first && autograd_.runs_kernel() != 0;
    const bool is_on_cpu =  // a tensor in pinned memory is on the CPU
        allocation.device == PYTRACER_CPU_DEVICE || allocation.device == PYTRACER_HOST_DEVICE;
    note(state, slot, {stack, is_exact, is_on_cpu, phase}, is_first, era);
  }
  cursor.thread = state.thread;
  cursor.next = state.next_sequence;
  cursor.period = period;
}

void ForwardStacks::note(const pytracer_autograd_state& state, ThreadSlot& slot,
                         const Forward& forward, bool is_first, uint64_t era) noexcept {
  NodeTable* table = slot.forward.table.load(std::memory_order_relaxed);
  if (table == nullptr || threads_[table - tables_].load(std::memory_order_relaxed) != state.thread) {
    table = claim(slot, state.thread);
    slot.forward.table.store(table, std::memory_order_relaxed);
    if (table == nullptr) return;
  }
  const uint64_t node = state.next_sequence - 1;
  uint64_t end = table->end.load(std::memory_order_relaxed);
  const bool is_same_era = table->era.load(std::memory_order_relaxed) == era;
  if (!is_same_era || node < end || node - end > kMostSkipped) {
    table->era.store(0, std::memory_order_release);
    table->first.store(node, std::memory_order_release);
    table->end.store(node, std::memory_order_release);
    end = node;
  }
  table->announced.store(node + 1, std::memory_order_relaxed);
  // Release stores: a reader that sees one of these words then also sees the announcement.
  const auto store = [&](uint64_t number, const Forward& value) {
    table->nodes[number % kNodes].store(word_of(value), std::memory_order_release);
  };
  if (end < node) {
    // Node end - 1 is the last one with an allocation of its own. Without `is_first`, allocations
    // may not have been seen, so that nothing is known of the nodes in between.
    const uint64_t near = is_first && table->first.load(std::memory_order_relaxed) < end
                              ? table->nodes[(end - 1) % kNodes].load(std::memory_order_relaxed)
                              : 0;
    for (uint64_t skipped = end; skipped < node; ++skipped) {
      const bool is_near = skipped - end < kNear;
      const Forward neighbour = is_near ? forward_of(near) : Forward{};
      store(skipped, {neighbour.stack, false, false, neighbour.phase});
    }
  }
  store(node, forward);
  table->end.store(node + 1, std::memory_order_release);
  table->era.store(era, std::memory_order_release);
}

ForwardStacks::Forward ForwardStacks::find(uint64_t thread, uint64_t node,
                                           uint64_t era) const noexcept {
  for (uint32_t i = 0; i < kTables; ++i) {
    if (threads_[i].load(std::memory_order_acquire) != thread) continue;
    const NodeTable& table = tables_[i];
    if (table.era.load(std::memory_order_acquire) != era) return {};
    const uint64_t first = table.first.load(std::memory_order_acquire);
    const uint64_t end = table.end.load(std::memory_order_acquire);
    if (node < first || first == end || node >= end + kNear) return {};
    const uint64_t known = std::min(node, end - 1);
    Forward forward = forward_of(table.nodes[known % kNodes].load(std::memory_order_acquire));
    if (known != node) forward.is_exact = false;
    // The place or the table may have been given to another node or thread meanwhile.
    const bool is_held = table.announced.load(std::memory_order_acquire) - known <= kNodes;
    const bool is_same = table.era.load(std::memory_order_acquire) == era &&
                         threads_[i].load(std::memory_order_acquire) == thread;
    return is_held && is_same ? forward : Forward{};
  }
  return {};
}

__attribute__((noinline)) NodeTable* ForwardStacks::claim(ThreadSlot& slot,
                                                          uint64_t thread) noexcept {
  std::lock_guard lock(claims_);
  NodeTable* oldest = nullptr;
  for (NodeTable& table : tables_) {
    const bool is_in_use = table.owner != nullptr && table.owner != &slot &&
                           table.owner->owned.load(std::memory_order_relaxed) &&
                           table.owner->forward.table.load(std::memory_order_relaxed) == &table;
    if (!is_in_use && (oldest == nullptr || table.claim < oldest->claim)) oldest = &table;
  }
  if (oldest == nullptr) return nullptr;
  std::atomic<uint64_t>& number = threads_[oldest - tables_];
  number.store(0, std::memory_order_release);
  oldest->era.store(0, std::memory_order_release);
  oldest->owner = &slot;
  oldest->claim = ++last_claim_;
  oldest->first.store(0, std::memory_order_release);
  oldest->announced.store(0, std::memory_order_release);
  oldest->end.store(0, std::memory_order_release);
  number.store(thread, std::memory_order_release);
  return oldest;
}

void ForwardStacks::reset_after_fork() noexcept {
  for (uint32_t i = 0; i < kTables; ++i) {
    threads_[i].store(0, std::memory_order_relaxed);
    tables_[i].era.store(0, std::memory_order_relaxed);
    tables_[i].owner = nullptr;
    tables_[i].claim = 0;
  }
  claims_.unlock();
}

}  // namespace pytracer
