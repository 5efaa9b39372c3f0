#include "snapshot.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "phases.h"
#include "pickle_writer.h"
#include "stack_writer.h"
#include "utf8.h"

namespace pytracer {

namespace {

constexpr const char* kActionNames[PYTRACER_ACTION_COUNT] = {
    "alloc",       "free_requested", "free_completed", "segment_alloc",      "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom", "workspace_snapshot", "annotate"};
constexpr uint64_t kSmallSegment = 1 << 20;  // torch's border between small and large requests
constexpr uint64_t kChunk = 4096;            // events read from the ring at a time: 256 KiB

class SnapshotWriter {
 public:
  SnapshotWriter(const View& view, const SnapshotExtras& extras, ByteSink& sink)
      : view_(view), extras_(extras), out_(sink), stacks_(out_, view.stacks, view.options.stack_depth) {}

  // False if the ring's writer overtook us in the middle of a trace: the output has a gap then. A
  // private copy of the events cannot be overtaken.
  bool write(bool copy_first);

 private:
  using Memo = PickleWriter::Memo;
  using Key = PickleWriter::Key;

  void segments();
  void segment_of_block(const LiveBlock& live, const DeviceView& device);
  void segment(const pytracer_segment& about, const pytracer_block* blocks,
               const DeviceView& device);
  void block(const pytracer_block& about, uint64_t address, const DeviceView& device);
  // That of the entry at `address` of a table ordered by address; 0: none, or not to be shown.
  uint32_t allocation_stack(const std::vector<LiveBlock>& live, uint64_t address) const;
  bool traces(bool copy_first);
  bool trace(const DeviceView& device, uint64_t& lost, bool copy_first);
  void events_of(const Event& held, const DeviceView& device);
  void event(const Event& event, uint8_t action, const DeviceView& device, int64_t time_us);
  void allocator_settings();
  void about_devices(const std::vector<uint64_t>& lost);
  uint64_t reserved_bytes(int device) const;
  void frames(uint32_t stack) { stacks_.frames(stack); }
  void pool_id(const Pool& pool);
  void label(std::string_view text, Key& none);
  void pair(Key& key, int64_t value) {
    out_.key(key);
    out_.integer(value);
  }
  int file_index(int device) const noexcept;

  const View& view_;
  const SnapshotExtras& extras_;
  PickleWriter out_;
  StackWriter stacks_;
  uint64_t trace_items_ = 0;  // of the device's list that is being written
  Memo default_pool_memo_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, Memo> pool_memos_;
  std::map<std::string_view, Memo> label_memos_;

  Key action_{"action"}, addr_{"addr"}, size_{"size"}, stream_{"stream"}, time_us_{"time_us"},
      pool_id_{"pool_id"}, frames_{"frames"}, compile_context_{"compile_context"},
      user_metadata_{"user_metadata"}, internal_metadata_{"internal_metadata"},
      not_compiled_{"N/A"}, no_metadata_{""},
      device_free_{"device_free"};
  std::vector<Key> action_names_{kActionNames, kActionNames + PYTRACER_ACTION_COUNT};
  Key device_{"device"}, address_{"address"}, total_size_{"total_size"},
      allocated_size_{"allocated_size"}, active_size_{"active_size"},
      requested_size_{"requested_size"}, segment_type_{"segment_type"},
      segment_pool_id_{"segment_pool_id"}, is_expandable_{"is_expandable"}, blocks_{"blocks"},
      state_{"state"}, small_{"small"}, large_{"large"};
  Key states_[3] = {Key("inactive"), Key("active_pending_free"), Key("active_allocated")};
};

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
  out_.list();
  out_.append_items();
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

bool SnapshotWriter::traces(bool copy_first) {
  int count = 1;
  for (const DeviceView& device : view_.devices) {
    count = std::max(count, file_index(device.device) + 1);
  }
  std::vector<uint64_t> lost(view_.devices.size());
  out_.list();
  for (int index = 0; index < count; ++index) {
    out_.list();
    for (size_t i = 0; i < view_.devices.size(); ++i) {
      const DeviceView& device = view_.devices[i];
      if (file_index(device.device) == index && !trace(device, lost[i], copy_first)) return false;
    }
    out_.append_items();
  }
  out_.append_items();
  about_devices(lost);
  return true;
}

bool SnapshotWriter::trace(const DeviceView& device, uint64_t& lost, bool copy_first) {
  trace_items_ = 0;
  const uint64_t end = device.cut.end;
  const uint64_t step = copy_first ? std::max<uint64_t>(end - device.first, 1) : kChunk;
  std::vector<Event> chunk(std::min(step, end - device.first));
  bool wrote = false;
  for (uint64_t begin = device.first; begin < end; begin += step) {
    const uint64_t chunk_end = std::min(begin + step, end);
    const uint64_t good = device.cut.ring->copy(begin, chunk_end, chunk.data());
    if (good > begin && wrote) return false;
    lost += good - begin;
    for (uint64_t sequence = good; sequence < chunk_end; ++sequence) {
      events_of(chunk[sequence - begin], device);
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
    label(Phases::instance().name(event.phase), no_metadata_);
  }
  if (labels.internal_metadata != 0) {
    out_.key(internal_metadata_);
    label(names.text(labels.internal_metadata), no_metadata_);
  }
  out_.set_items();
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

void SnapshotWriter::about_devices(const std::vector<uint64_t>& lost) {
  const StackTable::Stats stacks = view_.stacks ? view_.stacks->stats() : StackTable::Stats{};
  const auto item = [&](const char* name, uint64_t value) {
    out_.string(name);
    out_.integer(static_cast<int64_t>(value));
  };
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
    item("recorded", device.cut.end - device.begin);
    item("overwritten", device.overwritten() + lost[i]);
    item("unknown_frees", device.cut.counts.unknown_frees);
    item("live_dropped", device.cut.counts.live_dropped);
    item("labels_dropped", device.cut.counts.labels_dropped);
    if (!device.is_cpu() && view_.state) item("reserved_bytes", reserved_bytes(device.device));
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
  out_.set_items();
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

void SnapshotWriter::label(std::string_view text, Key& none) {
  if (text.empty()) return out_.key(none);
  const auto [found, is_new] = label_memos_.emplace(text, 0);
  if (!is_new) return out_.recall(found->second);
  out_.string(readable(text));
  found->second = out_.remember();
}

}  // namespace

void write_snapshot(const View& view, const SnapshotExtras& extras, ByteSink& sink) {
  if (SnapshotWriter(view, extras, sink).write(false)) return;
  sink.restart();
  SnapshotWriter(view, extras, sink).write(true);
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
