#include "snapshot/snapshot.h"

#include <algorithm>
#include <string>
#include <vector>

#include "snapshot/writer.h"
#include "support/utf8.h"

namespace pytracer {

static bool is_before(const Annotation& a, const Annotation& b) {
  if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
  if (a.is_end != b.is_end) return a.is_end;
  return a.is_end ? a.opened > b.opened : a.opened < b.opened;
}

std::vector<Annotation> annotations(const View& view, int64_t begin_ns) {
  std::vector<Annotation> result;
  const auto add = [&](int64_t begin, int64_t end, uint32_t number, bool is_step) {
    if (begin > view.end) return;
    const int64_t begin_time = std::max(WallClock::to_wall_ns(*view.clock, begin), begin_ns);
    const bool has_ended = end <= view.end;
    const int64_t end_time = has_ended ? WallClock::to_wall_ns(*view.clock, end) : INT64_MAX;
    if (end_time <= begin_time) return;  // it ended before `begin_ns`, or took no time
    result.push_back({begin_time, begin, number, is_step, false});
    if (has_ended) result.push_back({end_time, begin, number, is_step, true});
  };
  const size_t steps = view.steps.size();
  for (size_t i = 0; i < steps && steps > 1; ++i) {
    const auto& step = view.steps[i];
    const int64_t end = i + 1 < steps ? view.steps[i + 1].begin : Phases::kOpen;
    if (step.number != 0) add(step.begin, end, step.number, true);
  }
  for (const auto& span : view.phases.all) {
    if (view.shows(span.phase)) add(span.begin, span.end, span.phase, false);
  }
  std::sort(result.begin(), result.end(), is_before);
  return result;
}

// Traces are read from the ring in chunks, so that a dump needs 192 KiB for events instead of the
// ring's size. The ring is copied only if its writer overtakes the dump, or if the dump could not be
// begun again then.
void write_snapshot(const View& view, const SnapshotExtras& extras, ByteSink& sink) {
  if (sink.can_restart()) {
    if (SnapshotWriter(view, extras, sink).write(false)) return;
    sink.restart();
  }
  SnapshotWriter(view, extras, sink).write(true);
}

bool SnapshotWriter::write(bool copy_first) {
  out_.begin();
  out_.dict();
  out_.string("segments");
  write_segments(false);
  out_.string("device_traces");
  const int host_index = file_index(PYTRACER_HOST_DEVICE);
  out_.list();
  for (int index = 0; index < host_index; ++index) {
    if (!write_traces_at(index, copy_first)) return false;
  }
  out_.append_items();
  if (has_host()) {
    out_.string("host_segments");
    write_segments(true);
    out_.string("host_traces");
    if (!write_traces_at(host_index, copy_first)) return false;
  }
  write_metadata();
  out_.string("allocator_settings");
  write_allocator_settings();
  out_.string("external_annotations");
  write_annotations();
  out_.set_items();
  out_.end();
  return true;
}

int SnapshotWriter::file_index(int device) const noexcept {
  if (device != PYTRACER_CPU_DEVICE && device != PYTRACER_HOST_DEVICE) return device;
  int after_accelerators = 0;
  bool has_cpu = false;
  for (const DeviceView& view : view_.devices) {
    if (view.is_host()) continue;
    after_accelerators = std::max(after_accelerators, view.device + 1);
    has_cpu |= view.is_cpu();
  }
  if (device == PYTRACER_CPU_DEVICE) return after_accelerators;
  return std::max(after_accelerators + has_cpu, 1);  // the list of traces has at least one
}

bool SnapshotWriter::has_host() const {
  return std::any_of(view_.devices.begin(), view_.devices.end(), [&](const DeviceView& device) {
    return device.is_host() &&
           (device.first < device.capture.end || (view_.state && reserved_bytes(device.device) > 0));
  });
}

void SnapshotWriter::write_allocator_settings() {
  static const std::vector<AllocatorState::Setting> none;
  std::string group;  // whose dict is open; empty: the outermost dict
  out_.dict();
  for (const AllocatorState::Setting& setting : view_.state ? view_.state->settings : none) {
    if (setting.group != group) {
      if (!group.empty()) out_.set_items();
      group = setting.group;
      if (!group.empty()) {
        out_.string(group);
        out_.dict();
      }
    }
    out_.string(setting.key);
    switch (setting.about.kind) {
      case PYTRACER_BOOLEAN: out_.boolean(setting.about.integer != 0); break;
      case PYTRACER_INTEGER: out_.integer(setting.about.integer); break;
      case PYTRACER_REAL: out_.real(setting.about.real); break;
      default: out_.string(to_utf8(setting.text));
    }
  }
  if (!group.empty()) out_.set_items();
  out_.set_items();
}

void SnapshotWriter::write_annotations() {
  int device = 0;  // phases belong to no device, but readers of torch's format expect one
  if (!view_.devices.empty()) device = file_index(view_.devices.front().device);
  int64_t begin_ns = view_.clock ? WallClock::to_wall_ns(*view_.clock, view_.begin) : 0;
  if (first_event_ns_ != INT64_MAX) begin_ns = std::max(begin_ns, first_event_ns_);
  Key stage{"stage"}, start{"START"}, end{"END"};
  uint64_t items = 0;
  out_.list();
  for (const Annotation& annotation : annotations(view_, begin_ns)) {
    out_.next_item(items);
    out_.dict();
    out_.key(stacks_.name());
    if (annotation.is_step) {
      out_.string("step " + std::to_string(annotation.number));
    } else {
      write_label(phase(static_cast<uint16_t>(annotation.number)).name, no_metadata_);
    }
    out_.key(stage);
    out_.key(annotation.is_end ? end : start);
    write_pair(device_, device);
    write_pair(time_us_, annotation.time_ns / 1000);
    out_.set_items();
  }
  out_.append_items();
}

void SnapshotWriter::write_pool_id(const Pool& pool) {
  const bool is_default = pool.high == 0 && pool.low == 0;
  Memo& memo = is_default ? default_pool_memo_ : pool_memos_[{pool.high, pool.low}];
  out_.once(memo, [&] {
    out_.integer(static_cast<int64_t>(pool.high));
    out_.integer(static_cast<int64_t>(pool.low));
    out_.tuple2();
  });
}

void SnapshotWriter::write_label(std::string_view text, Key& none) {
  if (text.empty()) return out_.key(none);
  out_.once(label_memos_[text], [&] { out_.string(to_utf8(text)); });
}

const SnapshotWriter::ShownPhase& SnapshotWriter::phase(uint16_t number) {
  const auto [found, is_new] = phases_.emplace(number, ShownPhase{});
  if (is_new) found->second = {Phases::instance().name(number), view_.shows(number)};
  return found->second;
}

// The snapshot's `pytracer` key: what the file says about itself.
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
