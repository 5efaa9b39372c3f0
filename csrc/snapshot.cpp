#include <algorithm>
#include <string>
#include <vector>

#include "snapshot_writer.h"
#include "utf8.h"

namespace pytracer {

namespace {

constexpr uint64_t kSmallSegment = 1 << 20;  // torch's border between small and large requests

}  // namespace

bool SnapshotWriter::write(bool copy_first) {
  out_.begin();
  out_.dict();
  out_.string("segments");
  segments();
  out_.string("device_traces");
  if (!traces(copy_first)) return false;
  out_.string("allocator_settings");
  allocator_settings();
  out_.string("external_annotations");
  external_annotations();
  out_.set_items();
  out_.end();
  return true;
}

int SnapshotWriter::file_index(int device) const noexcept {
  if (device != PYTRACER_CPU_DEVICE) return device;
  int after = 0;  // the CPU stands after all accelerators
  for (const DeviceView& other : view_.devices) after = std::max(after, other.device + 1);
  return after;
}

void SnapshotWriter::segments() {
  uint64_t items = 0;
  out_.list();
  for (const DeviceView& device : view_.devices) {
    if (device.is_cpu()) {
      for (const LiveBlock& block : device.cut.live) {
        out_.next_item(items);
        segment_of_block(block, device);
      }
    } else if (view_.state) {
      for (const AllocatorState::Segment& each : view_.state->segments) {
        if (each.about.device != device.device) continue;
        out_.next_item(items);
        segment(each.about, view_.state->blocks.data() + each.first_block, device);
      }
    }
  }
  out_.append_items();
}

// The CPU's allocator has no segments.
void SnapshotWriter::segment_of_block(const LiveBlock& live, const DeviceView& device) {
  pytracer_segment about{};
  about.address = live.address;
  about.total_size = about.allocated_size = about.active_size = about.requested_size = live.size;
  about.block_count = 1;
  about.is_large = live.size >= kSmallSegment;
  const pytracer_block block = {live.size, live.size, PYTRACER_ACTIVE_ALLOCATED};
  segment(about, &block, device);
}

void SnapshotWriter::segment(const pytracer_segment& about, const pytracer_block* blocks,
                             const DeviceView& device) {
  out_.dict();
  pair(device_, file_index(device.device));
  pair(address_, static_cast<int64_t>(about.address));
  pair(total_size_, static_cast<int64_t>(about.total_size));
  pair(allocated_size_, static_cast<int64_t>(about.allocated_size));
  pair(active_size_, static_cast<int64_t>(about.active_size));
  pair(requested_size_, static_cast<int64_t>(about.requested_size));
  pair(stream_, static_cast<int64_t>(about.stream));
  out_.key(segment_type_);
  out_.key(about.is_large ? large_ : small_);
  out_.key(segment_pool_id_);
  pool_id({about.pool_high, about.pool_low});
  out_.key(is_expandable_);
  out_.boolean(about.is_expandable);
  out_.key(frames_);
  frames(allocation_stack(device.is_cpu() ? device.cut.live : device.cut.segments, about.address));
  out_.key(blocks_);
  out_.list();
  uint64_t address = about.address;
  for (uint64_t i = 0, items = 0; i < about.block_count; ++i) {
    out_.next_item(items);
    block(blocks[i], address, device);
    address += blocks[i].size;
  }
  out_.append_items();
  out_.set_items();
}

void SnapshotWriter::block(const pytracer_block& about, uint64_t address,
                           const DeviceView& device) {
  out_.dict();
  pair(address_, static_cast<int64_t>(address));
  pair(size_, static_cast<int64_t>(about.size));
  pair(requested_size_, static_cast<int64_t>(about.requested_size));
  out_.key(state_);
  out_.key(states_[about.state]);
  out_.key(frames_);
  frames(about.state == PYTRACER_INACTIVE ? 0 : allocation_stack(device.cut.live, address));
  out_.set_items();
}

uint32_t SnapshotWriter::allocation_stack(const std::vector<LiveBlock>& live,
                                          uint64_t address) const {
  if (view_.options.context == Context::none) return 0;
  const auto found = std::lower_bound(
      live.begin(), live.end(), address,
      [](const LiveBlock& block, uint64_t wanted) { return block.address < wanted; });
  return found != live.end() && found->address == address ? found->stack : 0;
}

void SnapshotWriter::allocator_settings() {
  static const std::vector<AllocatorState::Setting> none;
  std::string group;  // whose dict is open; empty: the outermost
  out_.dict();
  for (const AllocatorState::Setting& each : view_.state ? view_.state->settings : none) {
    if (each.group != group) {
      if (!group.empty()) out_.set_items();
      group = each.group;
      if (!group.empty()) {
        out_.string(group);
        out_.dict();
      }
    }
    out_.string(each.key);
    switch (each.about.kind) {
      case PYTRACER_BOOLEAN:
        out_.boolean(each.about.integer != 0);
        break;
      case PYTRACER_INTEGER:
        out_.integer(each.about.integer);
        break;
      case PYTRACER_REAL:
        out_.real(each.about.real);
        break;
      default:
        out_.string(readable(each.text));
    }
  }
  if (!group.empty()) out_.set_items();
  out_.set_items();
}

uint64_t SnapshotWriter::reserved_bytes(int device) const {
  uint64_t bytes = 0;
  for (const AllocatorState::Segment& segment : view_.state->segments) {
    if (segment.about.device == device) bytes += segment.about.total_size;
  }
  return bytes;
}

void SnapshotWriter::item(const char* name, uint64_t value) {
  out_.string(name);
  out_.integer(static_cast<int64_t>(value));
}

void SnapshotWriter::statistics(int device) {
  for (const pytracer_statistics& each : view_.state->statistics) {
    if (each.device != device) continue;
    out_.string("statistics");
    out_.dict();
    item("peak_reserved_bytes", each.peak_reserved_bytes);
    item("peak_allocated_bytes", each.peak_allocated_bytes);
    item("device_allocs", each.device_allocs);
    item("device_frees", each.device_frees);
    item("retries", each.retries);
    item("ooms", each.ooms);
    if (each.memory_fraction > 0) {
      out_.string("memory_fraction");
      out_.real(each.memory_fraction);
    }
    out_.set_items();
  }
}

void SnapshotWriter::about_devices() {
  const StackTable::Stats stacks = view_.stacks ? view_.stacks->stats() : StackTable::Stats{};
  out_.string("pytracer");
  out_.dict();
  out_.raw(extras_.pytracer_items);
  out_.string("devices");
  out_.list();
  for (size_t i = 0; i < view_.devices.size(); ++i) {
    const DeviceView& device = view_.devices[i];
    out_.dict();
    item("index", static_cast<uint64_t>(file_index(device.device)));
    out_.string("is_cpu");
    out_.boolean(device.is_cpu());
    item("recorded", device.cut.end - device.begin - traces_[i].hidden);
    item("overwritten", device.overwritten() + traces_[i].lost);
    item("unknown_frees", device.cut.counts.unknown_frees);
    item("live_dropped", device.cut.counts.live_dropped);
    item("labels_dropped", device.cut.counts.labels_dropped);
    out_.string("steps");
    steps(traces_[i]);
    if (!device.is_cpu() && view_.state) {
      item("reserved_bytes", reserved_bytes(device.device));
      statistics(device.device);
    }
    const auto extra = extras_.device_items.find(device.device);
    if (extra != extras_.device_items.end()) out_.raw(extra->second);
    out_.set_items();
  }
  out_.append_items();
  out_.string("stacks");
  out_.dict();
  item("count", stacks.stacks);
  item("truncated", stacks_.truncated());
  item("dropped", stacks.dropped);
  item("bytes", stacks.bytes);
  item("max_bytes", stacks.max_bytes);
  out_.set_items();
  out_.string("phases");
  out_.dict();
  item("names_dropped", view_.phases.names_dropped);
  out_.string("complete");
  out_.boolean(view_.phases.complete);
  out_.set_items();
  out_.set_items();
}

void write_snapshot(const View& view, const SnapshotExtras& extras, ByteSink& sink) {
  if (SnapshotWriter(view, extras, sink).write(false)) return;
  sink.restart();
  SnapshotWriter(view, extras, sink).write(true);
}

}  // namespace pytracer
