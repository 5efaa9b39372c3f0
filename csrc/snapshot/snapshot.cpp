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
  if (!write_traces(copy_first)) return false;
  if (has_host()) {
    out_.string("host_segments");
    write_segments(true);
    out_.string("host_traces");
    if (!write_host_trace(copy_first)) return false;
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

}  // namespace pytracer
