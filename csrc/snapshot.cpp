#include "snapshot.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "pickle_writer.h"

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
      : view_(view), extras_(extras), out_(sink) {}

  // False if the ring's writer overtook us in the middle of a trace: the output has a gap then. A
  // private copy of the events cannot be overtaken.
  bool write(bool copy_first);

 private:
  using Memo = PickleWriter::Memo;
  using Key = PickleWriter::Key;

  void segments();
  void segment(const LiveBlock& block, int device);
  bool traces(bool copy_first);
  bool trace(const DeviceView& device, uint64_t& lost, bool copy_first);
  void events_of(const Event& held);
  void event(const Event& event, uint8_t action, int64_t time_us);
  void about_devices(const std::vector<uint64_t>& lost);
  void frames(uint32_t stack);
  uint32_t number_of(uint32_t frame);
  void frame(uint32_t id);
  void text(uint32_t string);
  void pool_id();
  void pair(Key& key, int64_t value) {
    out_.key(key);
    out_.integer(value);
  }
  int file_index(int device) const noexcept;

  static Memo& memo_of(std::vector<Memo>& memos, uint32_t id) {
    if (id >= memos.size()) memos.resize(std::max<size_t>(id + 1, memos.size() * 2));
    return memos[id];
  }

  const View& view_;
  const SnapshotExtras& extras_;
  PickleWriter out_;
  std::vector<Memo> stack_memos_, frame_memos_, string_memos_;  // by id, by number, by id
  std::vector<uint32_t> frame_numbers_;                         // by id
  std::map<std::tuple<uint32_t, uint32_t, int32_t>, uint32_t> numbers_;
  std::map<std::pair<uint64_t, uint64_t>, Memo> written_stacks_;  // by a hash of their numbers
  Memo pool_memo_ = 0;
  uint64_t truncated_stacks_ = 0;  // of those written

  Key action_{"action"}, addr_{"addr"}, size_{"size"}, stream_{"stream"}, time_us_{"time_us"},
      pool_id_{"pool_id"}, frames_{"frames"}, compile_context_{"compile_context"},
      user_metadata_{"user_metadata"}, not_compiled_{"N/A"}, no_metadata_{""},
      device_free_{"device_free"};
  std::vector<Key> action_names_{kActionNames, kActionNames + PYTRACER_ACTION_COUNT};
  Key filename_{"filename"}, name_{"name"}, line_{"line"};
  Key device_{"device"}, address_{"address"}, total_size_{"total_size"},
      allocated_size_{"allocated_size"}, active_size_{"active_size"},
      requested_size_{"requested_size"}, segment_type_{"segment_type"},
      segment_pool_id_{"segment_pool_id"}, is_expandable_{"is_expandable"}, blocks_{"blocks"},
      state_{"state"}, active_allocated_{"active_allocated"}, small_{"small"}, large_{"large"};
};

bool SnapshotWriter::write(bool copy_first) {
  out_.begin();
  out_.dict();
  out_.string("segments");
  segments();
  out_.string("device_traces");
  if (!traces(copy_first)) return false;
  out_.string("allocator_settings");
  out_.raw(extras_.allocator_settings);
  out_.string("external_annotations");
  out_.raw(extras_.external_annotations);
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
  out_.list();
  for (const DeviceView& device : view_.devices) {
    for (const LiveBlock& block : device.cut.live) {
      out_.next_item();
      segment(block, file_index(device.device));
    }
  }
  out_.append_items();
}

void SnapshotWriter::segment(const LiveBlock& block, int device) {
  const int64_t size = static_cast<int64_t>(block.size);
  const uint32_t stack = view_.options.context == Context::none ? 0 : block.stack;
  out_.dict();
  pair(device_, device);
  pair(address_, static_cast<int64_t>(block.address));
  for (Key* key : {&total_size_, &allocated_size_, &active_size_, &requested_size_}) {
    pair(*key, size);
  }
  pair(stream_, 0);
  out_.key(segment_type_);
  out_.key(block.size < kSmallSegment ? small_ : large_);
  out_.key(segment_pool_id_);
  pool_id();
  out_.key(is_expandable_);
  out_.boolean(false);
  out_.key(frames_);
  frames(stack);
  out_.key(blocks_);
  out_.list();
  out_.dict();
  pair(address_, static_cast<int64_t>(block.address));
  pair(size_, size);
  pair(requested_size_, size);
  out_.key(state_);
  out_.key(active_allocated_);
  out_.key(frames_);
  frames(stack);
  out_.set_items();
  out_.append_items();
  out_.set_items();
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
      events_of(chunk[sequence - begin]);
    }
    wrote = wrote || good < chunk_end;
  }
  return true;
}

void SnapshotWriter::events_of(const Event& held) {
  const int64_t time_us = WallClock::to_wall_ns(view_.clock, held.ticks) / 1000;
  if (held.device != PYTRACER_CPU_DEVICE) {
    event(held, held.action, time_us);
  } else if (held.action == PYTRACER_ALLOC) {
    event(held, PYTRACER_SEGMENT_ALLOC, time_us);
    event(held, PYTRACER_ALLOC, time_us);
  } else if (held.action == PYTRACER_FREE_COMPLETED) {
    event(held, PYTRACER_FREE_REQUESTED, time_us);
    event(held, PYTRACER_FREE_COMPLETED, time_us);
    event(held, PYTRACER_SEGMENT_FREE, time_us);
  }
}

void SnapshotWriter::event(const Event& event, uint8_t action, int64_t time_us) {
  out_.next_item();
  out_.dict();
  out_.key(action_);
  out_.key(action_names_[action]);
  pair(action == PYTRACER_OOM ? device_free_ : addr_, static_cast<int64_t>(event.address));
  pair(size_, static_cast<int64_t>(event.size));
  pair(stream_, static_cast<int64_t>(event.stream));
  pair(time_us_, time_us);
  out_.key(pool_id_);
  pool_id();
  out_.key(frames_);
  frames(visible_stack(event, view_.options.context));
  out_.key(compile_context_);
  out_.key(not_compiled_);
  out_.key(user_metadata_);
  out_.key(no_metadata_);
  out_.set_items();
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
    out_.boolean(device.device == PYTRACER_CPU_DEVICE);
    item("recorded", device.cut.end - device.begin);
    item("overwritten", device.overwritten() + lost[i]);
    item("unknown_frees", device.cut.counts.unknown_frees);
    item("live_dropped", device.cut.counts.live_dropped);
    out_.set_items();
  }
  out_.append_items();
  out_.string("stacks");
  out_.dict();
  item("count", stacks.stacks);
  item("truncated", truncated_stacks_);
  item("dropped", stacks.dropped);
  item("bytes", stacks.bytes);
  item("max_bytes", stacks.max_bytes);
  out_.set_items();
  out_.set_items();
}

void SnapshotWriter::frames(uint32_t stack) {
  Memo& memo = memo_of(stack_memos_, stack);
  if (memo != 0) return out_.recall(memo);
  const StackTable::Stack none{};
  const StackTable::Stack& kept = stack != 0 ? view_.stacks->stack(stack) : none;
  const uint32_t count = std::min<uint32_t>(kept.frames, view_.options.stack_depth);
  std::pair<uint64_t, uint64_t> hash{1, count};
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t number = number_of(view_.stacks->frame_id(kept, i));
    hash.first = (hash.first ^ number) * 0x9e3779b97f4a7c15ull;
    hash.second = (hash.second + number) * 0xc2b2ae3d27d4eb4full;
  }
  const auto [same, is_new] = written_stacks_.emplace(hash, 0);
  if (!is_new) {
    memo = same->second;
    return out_.recall(memo);
  }
  out_.empty_list();
  memo = same->second = out_.remember();
  if (count == 0) return;
  truncated_stacks_ += kept.truncated || count < kept.frames;
  out_.mark();
  for (uint32_t i = 0; i < count; ++i) frame(view_.stacks->frame_id(kept, i));
  out_.append_items();
}

// Places in code that read the same, an instruction and the next one of its line, are one frame.
uint32_t SnapshotWriter::number_of(uint32_t id) {
  uint32_t& number = memo_of(frame_numbers_, id);
  if (number == 0) {
    const StackTable::Frame& kept = view_.stacks->frame(id);
    const auto key = std::tuple(view_.stacks->filename(kept), view_.stacks->name(kept), kept.line);
    number = numbers_.emplace(key, static_cast<uint32_t>(numbers_.size() + 1)).first->second;
  }
  return number;
}

void SnapshotWriter::frame(uint32_t id) {
  Memo& memo = memo_of(frame_memos_, number_of(id));
  if (memo != 0) return out_.recall(memo);
  const StackTable::Frame& kept = view_.stacks->frame(id);
  out_.dict();
  out_.key(filename_);
  text(view_.stacks->filename(kept));
  out_.key(name_);
  text(view_.stacks->name(kept));
  pair(line_, kept.line);
  out_.set_items();
  memo = out_.remember();
}

void SnapshotWriter::text(uint32_t string) {
  Memo& memo = memo_of(string_memos_, string);
  if (memo != 0) return out_.recall(memo);
  out_.string(view_.stacks->string(string));
  memo = out_.remember();
}

void SnapshotWriter::pool_id() {
  if (pool_memo_ != 0) return out_.recall(pool_memo_);
  out_.integer(0);
  out_.integer(0);
  out_.tuple2();
  pool_memo_ = out_.remember();
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
  const bool is_free =
      event.action == PYTRACER_FREE_REQUESTED || event.action == PYTRACER_FREE_COMPLETED;
  return is_free ? event.alloc_stack : event.stack;
}

}  // namespace pytracer
