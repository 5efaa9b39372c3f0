#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "snapshot/writer.h"

namespace pytracer {

namespace {

// False: the file lacks the allocation of the block that is freed. `known`: the addresses of blocks whose
// allocation it has.
bool has_allocation(const Event& event, std::unordered_set<uint64_t>& known) {
  if (event.action == PYTRACER_ALLOC) known.insert(event.address);
  if (!is_free(event)) return true;
  const bool completes = event.action != PYTRACER_FREE_REQUESTED;
  return completes ? known.erase(event.address) > 0 : known.count(event.address) > 0;
}

}  // namespace

bool SnapshotWriter::write_traces(bool copy_first) {
  const int count = file_index(PYTRACER_HOST_DEVICE);
  traces_.resize(view_.devices.size());
  out_.list();
  for (int index = 0; index < count; ++index) {
    out_.list();
    for (size_t i = 0; i < view_.devices.size(); ++i) {
      const DeviceView& device = view_.devices[i];
      if (device.is_host() || file_index(device.device) != index) continue;
      if (!write_trace(device, traces_[i], copy_first)) return false;
    }
    out_.append_items();
  }
  out_.append_items();
  return true;
}

bool SnapshotWriter::write_host_trace(bool copy_first) {
  out_.list();
  for (size_t i = 0; i < view_.devices.size(); ++i) {
    const DeviceView& device = view_.devices[i];
    if (device.is_host() && !write_trace(device, traces_[i], copy_first)) return false;
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
      write_events(event, sequence, device, missing);
    }
    has_written = has_written || first_held < chunk_end;
  }
  add_uses(end);
  return true;
}

void SnapshotWriter::write_events(const Event& event, uint64_t sequence,
                                  const DeviceView& device, Allocation missing) {
  const int64_t time_us = WallClock::to_wall_ns(*device.clock, event.ticks) / 1000;
  // The stack of a free may be that of the allocation, which may be older than the parameter.
  const bool is_own = event.action == PYTRACER_ALLOC || event.action == PYTRACER_OOM;
  const std::string* parameter =
      is_own ? parameters_.at_event(event.stack, device.device, sequence) : nullptr;
  for (const uint8_t action : entry_actions(event, device.is_cpu())) {
    write_event(event, action, device, time_us, parameter, missing);
    missing = {};
  }
}

void SnapshotWriter::write_event(const Event& event, uint8_t action, const DeviceView& device,
                                 int64_t time_us, const std::string* parameter,
                                 Allocation missing) {
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
  write_label(names.text(labels.compile_context),
              device.is_host() ? no_metadata_ : not_compiled_);
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

}  // namespace pytracer
