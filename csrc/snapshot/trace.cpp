#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "snapshot/writer.h"

namespace pytracer {

// False: the file lacks the allocation of the block that is freed. `known`: the addresses of blocks whose
// allocation it has.
static bool has_allocation(const Event& event, std::unordered_set<uint64_t>& known) {
  if (event.action == PYTRACER_ALLOC) known.insert(event.address);
  if (!is_free(event)) return true;
  const bool completes = event.action != PYTRACER_FREE_REQUESTED;
  return completes ? known.erase(event.address) > 0 : known.count(event.address) > 0;
}

bool SnapshotWriter::write_traces_at(int index, bool copy_first) {
  out_.list();
  for (size_t i = 0; i < view_.devices.size(); ++i) {
    const DeviceView& device = view_.devices[i];
    if (file_index(device.device) == index && !write_trace(device, traces_[i], copy_first)) return false;
  }
  out_.append_items();
  return true;
}

bool SnapshotWriter::write_trace(const DeviceView& device, WrittenTrace& written, bool copy_first) {
  trace_items_ = 0;
  auto step = device.steps.begin();
  auto use = device.uses.begin();
  const auto add_uses = [&](uint64_t sequence) {  // those that were noted before an event
    for (; use != device.uses.end() && use->sequence <= sequence; ++use) {
      written.uses.push_back({*use, trace_items_});
    }
  };
  std::unordered_set<uint64_t> known;
  bool step_is_new = false, is_first = true, has_written = false;
  const uint64_t end = device.capture.end;
  const uint64_t most = copy_first ? std::max<uint64_t>(end - device.first, 1) : kEventChunk;
  std::vector<Event> chunk(std::min(most, end - device.first));
  for (uint64_t begin = device.first; begin < end; begin += most) {
    const uint64_t chunk_end = std::min(begin + most, end);
    const uint64_t first_held = device.capture.ring->copy(begin, chunk_end, chunk.data());
    if (first_held > begin && has_written) return false;
    written.lost += first_held - begin;
    // Among the events that are lost, other blocks may have had the same addresses.
    while (use != device.uses.end() && use->sequence < first_held) ++use;
    for (uint64_t sequence = first_held; sequence < chunk_end; ++sequence) {
      for (; step != device.steps.end() && step->begin <= sequence; ++step) step_is_new = true;
      add_uses(sequence);
      const Event& event = chunk[sequence - begin];
      if (!phase(event.phase).is_shown) {
        ++written.hidden;
        continue;
      }
      if (is_first && event.action != PYTRACER_SNAPSHOT) {
        is_first = false;
        const bool is_complete = device.first + written.lost == device.begin;
        const int64_t time_ns = WallClock::to_wall_ns(*device.clock, event.ticks);
        first_event_ns_ = std::min(first_event_ns_, is_complete ? INT64_MIN : time_ns);
      }
      if (step_is_new) written.steps.push_back({std::prev(step)->number, trace_items_});
      step_is_new = false;
      Allocation missing;
      if (!has_allocation(event, known)) {
        const uint32_t now = step == device.steps.begin() ? 0 : std::prev(step)->number;
        missing = {view_.context >= Context::alloc ? event.alloc_stack : 0, birth_step(device, event, now)};
      }
      // The stack of a free may be that of the allocation, which may be older than the parameter.
      const bool is_own = event.action == PYTRACER_ALLOC || event.action == PYTRACER_OOM;
      const std::string* parameter = is_own ? parameters_.at_event(event.stack, device.device, sequence) : nullptr;
      const int64_t time_us = WallClock::to_wall_ns(*device.clock, event.ticks) / 1000;
      for (const uint8_t action : entry_actions(event, device.is_cpu())) {
        write_event(event, action, device, time_us, parameter, std::exchange(missing, {}));
      }
    }
    has_written = has_written || first_held < chunk_end;
  }
  add_uses(end);
  return true;
}

void SnapshotWriter::write_event(const Event& event, uint8_t action, const DeviceView& device,
                                 int64_t time_us, const std::string* parameter, Allocation missing) {
  const DeviceNames& names = *device.capture.names;
  const DeviceNames::Labels labels = names.labels(event.metadata);
  out_.next_item(trace_items_);
  out_.dict();
  out_.key(action_);
  out_.key(action_names_[action]);
  write_pair(action == PYTRACER_OOM ? device_free_ : addr_, static_cast<int64_t>(event.address));
  write_pair(size_, static_cast<int64_t>(event.size()));
  write_pair(stream_, static_cast<int64_t>(event.stream));
  write_pair(time_us_, time_us);
  out_.key(pool_id_);
  write_pool_id(names.pool(event.pool));
  write_stack(visible_stack(event, view_.context), parameter);
  out_.key(compile_context_);
  write_label(names.text(labels.compile_context), device.is_host() ? no_metadata_ : not_compiled_);
  out_.key(user_metadata_);
  if (labels.user_metadata != 0 || event.phase == 0) {
    write_label(names.text(labels.user_metadata), no_metadata_);
  } else {
    write_label(phase(event.phase).name, no_metadata_);
  }
  if (labels.internal_metadata != 0) {
    out_.key(internal_metadata_);
    write_label(names.text(labels.internal_metadata), no_metadata_);
  }
  if (missing.stack != 0 || missing.step != 0) {
    out_.key(allocation_);
    out_.dict();
    if (missing.stack != 0) write_stack(missing.stack);
    if (missing.step != 0) write_pair(birth_step_, missing.step);
    out_.set_items();
  }
  out_.set_items();
}

constexpr uint64_t kSmallRequest = 1 << 20;  // torch's limit between small and large requests

void SnapshotWriter::write_segments(bool of_host) {
  uint64_t items = 0;
  out_.list();
  for (const DeviceView& device : view_.devices) {
    if (device.is_host() != of_host) continue;
    if (device.is_cpu()) {
      // The CPU's allocator has no segments, so each block gets a segment of its own.
      for (const LiveBlock& live : device.capture.blocks) {
        out_.next_item(items);
        pytracer_segment segment{};
        segment.address = live.address;
        segment.total_size = segment.allocated_size = live.size;
        segment.active_size = segment.requested_size = live.size;
        segment.block_count = 1;
        segment.is_large = live.size >= kSmallRequest;
        const pytracer_block block = {live.size, live.size, PYTRACER_ACTIVE_ALLOCATED};
        write_segment(segment, &block, device);
      }
    } else if (view_.state) {
      for (const AllocatorState::Segment& segment : view_.state->segments) {
        if (segment.about.device != device.device) continue;
        out_.next_item(items);
        write_segment(segment.about, view_.state->blocks.data() + segment.first_block, device);
      }
    }
  }
  out_.append_items();
}

void SnapshotWriter::write_segment(const pytracer_segment& segment, const pytracer_block* blocks,
                                   const DeviceView& device) {
  const auto& stacks = device.is_cpu() ? device.capture.blocks : device.capture.segments;
  out_.dict();
  write_pair(device_, device.is_host() ? -1 : file_index(device.device));
  write_pair(address_, static_cast<int64_t>(segment.address));
  write_pair(total_size_, static_cast<int64_t>(segment.total_size));
  write_pair(allocated_size_, static_cast<int64_t>(segment.allocated_size));
  write_pair(active_size_, static_cast<int64_t>(segment.active_size));
  write_pair(requested_size_, static_cast<int64_t>(segment.requested_size));
  write_pair(stream_, static_cast<int64_t>(segment.stream));
  out_.key(segment_type_);
  out_.key(segment.is_large ? large_ : small_);
  out_.key(segment_pool_id_);
  write_pool_id({segment.pool_high, segment.pool_low});
  out_.key(is_expandable_);
  out_.boolean(segment.is_expandable);
  write_stack(allocation_stack(find_live(stacks, segment.address)));
  out_.key(blocks_);
  out_.list();
  uint64_t address = segment.address;
  for (uint64_t i = 0, items = 0; i < segment.block_count; ++i) {
    out_.next_item(items);
    write_block(blocks[i], address, device);
    address += blocks[i].size;
  }
  out_.append_items();
  out_.set_items();
}

void SnapshotWriter::write_block(const pytracer_block& block, uint64_t address,
                                 const DeviceView& device) {
  const bool is_free = block.state == PYTRACER_INACTIVE;
  const LiveBlock* live = is_free ? nullptr : find_live(device.capture.blocks, address);
  out_.dict();
  write_pair(address_, static_cast<int64_t>(address));
  write_pair(size_, static_cast<int64_t>(block.size));
  write_pair(requested_size_, static_cast<int64_t>(block.requested_size));
  out_.key(state_);
  out_.key(states_[block.state]);
  const std::string* parameter = live ? parameters_.of_block(*live, device.device) : nullptr;
  write_stack(allocation_stack(live), parameter);
  if (live != nullptr && block.state == PYTRACER_ACTIVE_ALLOCATED) {
    if (const uint32_t step = device.birth_step(live->epoch)) write_pair(birth_step_, step);
  }
  if (view_.owners && block.state == PYTRACER_ACTIVE_ALLOCATED) {
    const DeviceLog::Capture& capture = device.capture;
    Owners::Found found = view_.owners->find(address, block.size, live, capture, device.device);
    if (device.is_host()) found.holder = nullptr;  // tensors in pinned memory are not looked up
    out_.key(category_);
    out_.key(category_names_[static_cast<size_t>(found.category)]);
    out_.key(category_rule_);
    out_.key(rule_names_[static_cast<size_t>(found.rule)]);
    if (found.holder != nullptr) {
      out_.key(holder_);
      write_label(*found.holder, no_metadata_);
    }
    if (found.first != nullptr) {
      out_.key(owner_);
      write_label(found.first->name, no_metadata_);
      write_pair(owners_, static_cast<int64_t>(found.count));
    }
  }
  out_.set_items();
}

const LiveBlock* SnapshotWriter::find_live(const std::vector<LiveBlock>& live, uint64_t address) {
  const auto found = std::lower_bound(
      live.begin(), live.end(), address,
      [](const LiveBlock& block, uint64_t wanted) { return block.address < wanted; });
  return found != live.end() && found->address == address ? &*found : nullptr;
}

uint32_t SnapshotWriter::allocation_stack(const LiveBlock* live) const noexcept {
  return live != nullptr && view_.context != Context::none ? live->stack : 0;
}

}  // namespace pytracer
