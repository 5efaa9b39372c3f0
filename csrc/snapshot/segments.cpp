#include <algorithm>

#include "snapshot/writer.h"

namespace pytracer {

constexpr uint64_t kSmallSegment = 1 << 20;  // torch's limit between small and large requests

void SnapshotWriter::write_segments(bool of_host) {
  uint64_t items = 0;
  out_.list();
  for (const DeviceView& device : view_.devices) {
    if (device.is_host() != of_host) continue;
    if (device.is_cpu()) {
      for (const LiveBlock& block : device.capture.blocks) {
        out_.next_item(items);
        write_cpu_block(block, device);
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

// The CPU's allocator has no segments, so each block gets a segment of its own.
void SnapshotWriter::write_cpu_block(const LiveBlock& live, const DeviceView& device) {
  pytracer_segment segment{};
  segment.address = live.address;
  segment.total_size = segment.allocated_size = live.size;
  segment.active_size = segment.requested_size = live.size;
  segment.block_count = 1;
  segment.is_large = live.size >= kSmallSegment;
  const pytracer_block block = {live.size, live.size, PYTRACER_ACTIVE_ALLOCATED};
  write_segment(segment, &block, device);
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
    write_owner(found);
  }
  out_.set_items();
}

void SnapshotWriter::write_owner(const Owners::Found& found) {
  out_.key(category_);
  out_.key(category_names_[static_cast<size_t>(found.category)]);
  out_.key(category_rule_);
  out_.key(rule_names_[static_cast<size_t>(found.rule)]);
  if (found.holder != nullptr) {
    out_.key(holder_);
    write_label(*found.holder, no_metadata_);
  }
  if (found.first == nullptr) return;
  out_.key(owner_);
  write_label(found.first->name, no_metadata_);
  write_pair(owners_, static_cast<int64_t>(found.count));
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
