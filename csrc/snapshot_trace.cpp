#include "snapshot_writer.h"

#include <algorithm>
#include <iterator>

#include "utf8.h"

namespace pytracer {

namespace {

constexpr uint64_t kChunk = 4096;  // events read from the ring at a time: 256 KiB

}  // namespace

bool SnapshotWriter::traces(bool copy_first) {
  int count = 1;
  for (const DeviceView& device : view_.devices) {
    count = std::max(count, file_index(device.device) + 1);
  }
  traces_.resize(view_.devices.size());
  out_.list();
  for (int index = 0; index < count; ++index) {
    out_.list();
    for (size_t i = 0; i < view_.devices.size(); ++i) {
      const DeviceView& device = view_.devices[i];
      if (file_index(device.device) == index && !trace(device, traces_[i], copy_first)) return false;
    }
    out_.append_items();
  }
  out_.append_items();
  about_devices();
  return true;
}

bool SnapshotWriter::trace(const DeviceView& device, Trace& written, bool copy_first) {
  trace_items_ = 0;
  auto step = device.steps.begin();
  bool step_is_new = false, is_first = true;
  const uint64_t end = device.cut.end;
  const uint64_t most = copy_first ? std::max<uint64_t>(end - device.first, 1) : kChunk;
  std::vector<Event> chunk(std::min(most, end - device.first));
  bool wrote = false;
  for (uint64_t begin = device.first; begin < end; begin += most) {
    const uint64_t chunk_end = std::min(begin + most, end);
    const uint64_t good = device.cut.ring->copy(begin, chunk_end, chunk.data());
    if (good > begin && wrote) return false;
    written.lost += good - begin;
    for (uint64_t sequence = good; sequence < chunk_end; ++sequence) {
      for (; step != device.steps.end() && step->begin <= sequence; ++step) step_is_new = true;
      const Event& event = chunk[sequence - begin];
      if (!phase(event.phase).is_shown) {
        ++written.hidden;
        continue;
      }
      if (is_first && event.action != PYTRACER_SNAPSHOT) {
        is_first = false;
        const bool whole = device.first + written.lost == device.begin;
        const int64_t time_ns = WallClock::to_wall_ns(*device.clock, event.ticks);
        first_event_ns_ = std::min(first_event_ns_, whole ? INT64_MIN : time_ns);
      }
      if (step_is_new) written.steps.push_back({std::prev(step)->number, trace_items_});
      step_is_new = false;
      events_of(event, device);
    }
    wrote = wrote || good < chunk_end;
  }
  return true;
}

void SnapshotWriter::events_of(const Event& held, const DeviceView& device) {
  const int64_t time_us = WallClock::to_wall_ns(*device.clock, held.ticks) / 1000;
  if (!device.is_cpu()) {
    event(held, held.action, device, time_us);
  } else if (held.action == PYTRACER_ALLOC) {
    event(held, PYTRACER_SEGMENT_ALLOC, device, time_us);
    event(held, PYTRACER_ALLOC, device, time_us);
  } else if (held.action == PYTRACER_FREE_COMPLETED) {
    event(held, PYTRACER_FREE_REQUESTED, device, time_us);
    event(held, PYTRACER_FREE_COMPLETED, device, time_us);
    event(held, PYTRACER_SEGMENT_FREE, device, time_us);
  } else {
    event(held, held.action, device, time_us);
  }
}

void SnapshotWriter::event(const Event& event, uint8_t action, const DeviceView& device,
                           int64_t time_us) {
  const DeviceNames& names = *device.cut.names;
  const DeviceNames::Labels labels = names.labels(event.metadata);
  out_.next_item(trace_items_);
  out_.dict();
  out_.key(action_);
  out_.key(action_names_[action]);
  pair(action == PYTRACER_OOM ? device_free_ : addr_, static_cast<int64_t>(event.address));
  pair(size_, static_cast<int64_t>(event.size));
  pair(stream_, static_cast<int64_t>(event.stream));
  pair(time_us_, time_us);
  out_.key(pool_id_);
  pool_id(names.pool(event.pool));
  out_.key(frames_);
  frames(visible_stack(event, view_.options.context));
  out_.key(compile_context_);
  label(names.text(labels.compile_context), not_compiled_);
  out_.key(user_metadata_);
  if (labels.user_metadata != 0 || event.phase == 0) {
    label(names.text(labels.user_metadata), no_metadata_);
  } else {
    label(phase(event.phase).name, no_metadata_);
  }
  if (labels.internal_metadata != 0) {
    out_.key(internal_metadata_);
    label(names.text(labels.internal_metadata), no_metadata_);
  }
  out_.set_items();
}

void SnapshotWriter::steps(const Trace& written) {
  uint64_t items = 0;
  out_.list();
  for (const auto& [number, index] : written.steps) {
    out_.next_item(items);
    out_.list();
    out_.integer(number);
    out_.integer(static_cast<int64_t>(index));
    out_.append_items();
  }
  out_.append_items();
}

void SnapshotWriter::external_annotations() {
  int device = 0;  // phases are of no device; readers of torch's expect one
  if (!view_.devices.empty()) device = file_index(view_.devices.front().device);
  int64_t begin_ns = view_.clock ? WallClock::to_wall_ns(*view_.clock, view_.begin) : 0;
  if (first_event_ns_ != INT64_MAX) begin_ns = std::max(begin_ns, first_event_ns_);
  Key stage{"stage"}, start{"START"}, end{"END"};
  uint64_t items = 0;
  out_.list();
  for (const Annotation& each : annotations_of(view_, begin_ns)) {
    out_.next_item(items);
    out_.dict();
    out_.key(stacks_.name());
    if (each.is_step) {
      out_.string("step " + std::to_string(each.number));
    } else {
      label(phase(static_cast<uint16_t>(each.number)).name, no_metadata_);
    }
    out_.key(stage);
    out_.key(each.ends ? end : start);
    pair(device_, device);
    pair(time_us_, each.time_ns / 1000);
    out_.set_items();
  }
  out_.append_items();
}

void SnapshotWriter::pool_id(const Pool& pool) {
  const bool is_default = pool.high == 0 && pool.low == 0;
  Memo& memo = is_default ? default_pool_memo_ : pool_memos_[{pool.high, pool.low}];
  if (memo != 0) return out_.recall(memo);
  out_.integer(static_cast<int64_t>(pool.high));
  out_.integer(static_cast<int64_t>(pool.low));
  out_.tuple2();
  memo = out_.remember();
}

const SnapshotWriter::Phase& SnapshotWriter::phase(uint16_t number) {
  const auto [found, is_new] = phases_.emplace(number, Phase{});
  if (is_new) found->second = {Phases::instance().name(number), view_.shows(number)};
  return found->second;
}

void SnapshotWriter::label(std::string_view text, Key& none) {
  if (text.empty()) return out_.key(none);
  const auto [found, is_new] = label_memos_.emplace(text, 0);
  if (!is_new) return out_.recall(found->second);
  out_.string(readable(text));
  found->second = out_.remember();
}

bool has_events(const View& view) {
  Event event;
  for (const DeviceView& device : view.devices) {
    for (uint64_t sequence = device.first; sequence < device.cut.end; ++sequence) {
      const bool there = device.cut.ring->copy(sequence, sequence + 1, &event) == sequence;
      if (there && event.action != PYTRACER_SNAPSHOT && view.shows(event.phase)) return true;
    }
  }
  return false;
}

std::vector<Event> copy_events(const DeviceView& device) {
  std::vector<Event> events(device.cut.end - device.first);
  const uint64_t good = device.cut.ring->copy(device.first, device.cut.end, events.data());
  events.erase(events.begin(), events.begin() + static_cast<ptrdiff_t>(good - device.first));
  return events;
}

uint32_t visible_stack(const Event& event, Context context) noexcept {
  if (context == Context::all) return event.stack;
  if (context != Context::alloc) return 0;
  switch (event.action) {
    case PYTRACER_FREE_REQUESTED:
    case PYTRACER_FREE_COMPLETED:
      return event.alloc_stack;
    case PYTRACER_SEGMENT_FREE:
    case PYTRACER_SEGMENT_UNMAP:
      return event.alloc_stack != 0 ? event.alloc_stack : event.stack;
    default:
      return event.stack;
  }
}

}  // namespace pytracer
