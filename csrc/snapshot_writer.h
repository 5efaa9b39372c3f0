// Writes one snapshot; snapshot.h says what it is.
//
// snapshot.cpp has the segments and what is told of the whole, snapshot_trace.cpp the events.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annotations.h"
#include "pickle_writer.h"
#include "snapshot.h"
#include "stack_writer.h"

namespace pytracer {

constexpr const char* kActionNames[PYTRACER_ACTION_COUNT] = {
    "alloc",       "free_requested", "free_completed", "segment_alloc",      "segment_free",
    "segment_map", "segment_unmap",  "snapshot",       "oom", "workspace_snapshot", "annotate"};

class SnapshotWriter {
 public:
  SnapshotWriter(const View& view, const SnapshotExtras& extras, ByteSink& sink)
      : view_(view),
        extras_(extras),
        out_(sink),
        stacks_(out_, view.stacks, view.options.stack_depth) {}

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
  struct Trace {  // what was written of a device
    uint64_t lost = 0;    // overtaken by the ring's writer
    uint64_t hidden = 0;  // of other phases
    std::vector<std::pair<uint32_t, uint64_t>> steps;  // number, index of its first event
  };
  bool trace(const DeviceView& device, Trace& written, bool copy_first);
  void events_of(const Event& held, const DeviceView& device);
  void event(const Event& event, uint8_t action, const DeviceView& device, int64_t time_us);
  void allocator_settings();
  void external_annotations();
  void about_devices();
  void steps(const Trace& written);
  void statistics(int device);
  void item(const char* name, uint64_t value);
  uint64_t reserved_bytes(int device) const;
  void frames(uint32_t stack) { stacks_.frames(stack); }
  void pool_id(const Pool& pool);
  void label(std::string_view text, Key& none);
  struct Phase {
    std::string_view name;
    bool is_shown;
  };
  const Phase& phase(uint16_t number);
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
  std::vector<Trace> traces_;
  int64_t first_event_ns_ = INT64_MAX;  // of all devices; of one that lost none, INT64_MIN
  Memo default_pool_memo_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, Memo> pool_memos_;
  std::map<std::string_view, Memo> label_memos_;
  std::map<uint16_t, Phase> phases_;

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

}  // namespace pytracer
