// The snapshot's `pytracer` key: what the file says about itself.
#include "snapshot/writer.h"

namespace pytracer {

void SnapshotWriter::write_metadata() {
  const StackTable::Stats stacks = view_.stacks ? view_.stacks->stats() : StackTable::Stats{};
  out_.string("pytracer");
  out_.dict();
  out_.raw(extras_.pytracer_items);
  out_.string("devices");
  out_.list();
  for (size_t i = 0; i < view_.devices.size(); ++i) {
    if (!view_.devices[i].is_host() || has_host()) write_device(view_.devices[i], traces_[i]);
  }
  out_.append_items();
  out_.string("stacks");
  out_.dict();
  write_item("count", stacks.stacks);
  write_item("truncated", stacks_.truncated());
  write_item("dropped", stacks.dropped);
  write_item("bytes", stacks.bytes);
  write_item("max_bytes", stacks.max_bytes);
  out_.set_items();
  out_.string("phases");
  out_.dict();
  write_item("names_dropped", view_.phases.names_dropped);
  write_item("complete", view_.phases.complete);
  out_.set_items();
  if (view_.owners) {
    out_.string("tensors");
    out_.dict();
    write_item("read", view_.owners->count());
    write_item("unread", view_.owners->missing().tensors);
    write_item("unread_gradients", view_.owners->missing().gradients);
    write_item("unsearched", view_.owners->missing().holders);
    write_item("all_modules_found", !view_.owners->missing().modules);
    out_.set_items();
  }
  out_.set_items();
}

void SnapshotWriter::write_device(const DeviceView& device, const WrittenTrace& written) {
  out_.dict();
  write_item("index", file_index(device.device));
  write_item("is_cpu", device.is_cpu());
  if (device.is_host()) write_item("is_host", true);
  write_item("recorded", device.capture.end - device.begin - written.hidden);
  write_item("overwritten", device.overwritten() + written.lost);
  write_item("unknown_frees", device.capture.counts.unknown_frees);
  write_item("live_dropped", device.capture.counts.live_dropped);
  write_item("labels_dropped", device.capture.counts.labels_dropped);
  uint64_t items = 0;
  out_.string("steps");
  out_.list();
  for (const auto& [number, first_event] : written.steps) {
    out_.next_item(items);
    out_.list();
    out_.integer(number);
    out_.integer(static_cast<int64_t>(first_event));
    out_.append_items();
  }
  out_.append_items();
  write_uses(written);
  if (!device.is_cpu() && view_.state) {
    write_item("reserved_bytes", reserved_bytes(device.device));
    write_statistics(device.device);
  }
  const auto extra = extras_.device_items.find(device.device);
  if (extra != extras_.device_items.end()) out_.raw(extra->second);
  out_.set_items();
}

void SnapshotWriter::write_uses(const WrittenTrace& written) {
  if (written.uses.empty()) return;
  uint64_t items = 0;
  out_.string("uses");
  out_.list();
  for (const auto& [use, event] : written.uses) {
    out_.next_item(items);
    out_.list();
    out_.integer(static_cast<int64_t>(event));
    out_.integer(static_cast<int64_t>(use.address));
    out_.key(role_names_[use.role]);
    out_.append_items();
  }
  out_.append_items();
}

void SnapshotWriter::write_statistics(int device) {
  for (const pytracer_statistics& statistics : view_.state->statistics) {
    if (statistics.device != device) continue;
    out_.string("statistics");
    out_.dict();
    write_item("peak_reserved_bytes", statistics.peak_reserved_bytes);
    write_item("peak_allocated_bytes", statistics.peak_allocated_bytes);
    write_item("device_allocs", statistics.device_allocs);
    write_item("device_frees", statistics.device_frees);
    write_item("retries", statistics.retries);
    write_item("ooms", statistics.ooms);
    if (statistics.memory_fraction > 0) {
      out_.string("memory_fraction");
      out_.real(statistics.memory_fraction);
    }
    out_.set_items();
  }
}

uint64_t SnapshotWriter::reserved_bytes(int device) const {
  uint64_t bytes = 0;
  for (const AllocatorState::Segment& segment : view_.state->segments) {
    if (segment.about.device == device) bytes += segment.about.total_size;
  }
  return bytes;
}

}  // namespace pytracer
