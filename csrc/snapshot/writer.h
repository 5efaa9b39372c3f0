// Writes one snapshot, in the format that snapshot.h describes. One thread.
//
// trace.cpp implements segments and traces, snapshot.cpp the rest.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "snapshot/parameter_names.h"
#include "snapshot/snapshot.h"

namespace pytracer {

constexpr const char* kActionNames[PYTRACER_ACTION_COUNT] = {
    "alloc",         "free_requested", "free_completed", "segment_alloc",
    "segment_free",  "segment_map",    "segment_unmap",  "snapshot",
    "oom",           "workspace_snapshot", "annotate"};

constexpr const char* kRoleNames[kTensorRoles] = {"argument",  "result", "autograd_grad",
                                                  "parameter", "buffer", "optimizer_state"};

class SnapshotWriter {
 public:
  SnapshotWriter(const View& view, const SnapshotExtras& extras, ByteSink& sink)
      : view_(view), extras_(extras), out_(sink),
        stacks_(out_, view.stacks, view.stack_depth, extras.generated_code, extras.file_names) {}

  // Returns false if the ring's writer overwrote events in the middle of a trace, which leaves a gap
  // in the output. With `copy_first` the events are copied before they are written, so no gap can
  // come about.
  bool write(bool copy_first);

 private:
  using Memo = PickleWriter::Memo;
  using Key = PickleWriter::Key;
  struct WrittenTrace {   // what the file has of a device's trace
    uint64_t lost = 0;    // events that the ring's writer overwrote before they were read
    uint64_t hidden = 0;  // events of other phases
    std::vector<std::pair<uint32_t, uint64_t>> steps;  // number, index of its first event
    std::vector<std::pair<TensorUse, uint64_t>> uses;  // use, index of the first event after it
  };
  struct ShownPhase {
    std::string_view name;
    bool is_shown;
  };

  // trace.cpp
  void write_segments(bool of_host);
  void write_segment(const pytracer_segment& segment, const pytracer_block* blocks,
                     const DeviceView& device);
  void write_block(const pytracer_block& block, uint64_t address, const DeviceView& device);
  // The entry at `address` of a table ordered by address, or null.
  static const LiveBlock* find_live(const std::vector<LiveBlock>& live, uint64_t address);
  // The stack of an entry; 0: none, or not shown.
  uint32_t allocation_stack(const LiveBlock* live) const noexcept;

  bool write_traces_at(int index, bool copy_first);  // a list, of the devices with this index in the file
  bool write_trace(const DeviceView& device, WrittenTrace& written, bool copy_first);
  struct Allocation {  // of a block whose free the file has, but not this
    uint32_t stack = 0, step = 0;
  };
  void write_event(const Event& event, uint8_t action, const DeviceView& device, int64_t time_us,
                   const std::string* parameter, Allocation missing);

  // snapshot.cpp
  void write_metadata();
  void write_device(const DeviceView& device, const WrittenTrace& written);
  void write_uses(const WrittenTrace& written);
  void write_statistics(int device);
  template <class Value>
  void write_item(const char* name, Value value) {
    out_.string(name);
    if constexpr (std::is_same_v<Value, bool>) {
      out_.boolean(value);
    } else {
      out_.integer(static_cast<int64_t>(value));
    }
  }
  uint64_t reserved_bytes(int device) const;

  void write_allocator_settings();
  void write_annotations();
  void write_stack(uint32_t stack, const std::string* parameter = nullptr) {
    stacks_.write_stack(stack, view_.forward_stacks, parameter);
  }
  void write_pool_id(const Pool& pool);
  void write_label(std::string_view text, Key& none);
  void write_pair(Key& key, int64_t value) {
    out_.key(key);
    out_.integer(value);
  }
  const ShownPhase& phase(uint16_t number);
  // The position of a device's trace in the file. Pinned host memory comes last, after the list of
  // the other devices' traces.
  int file_index(int device) const noexcept;
  bool has_host() const;  // whether pinned memory was used

  const View& view_;
  const SnapshotExtras& extras_;
  PickleWriter out_;
  ParameterNames parameters_{view_};
  StackWriter stacks_;
  uint64_t trace_items_ = 0;  // entries written to the current device's list
  std::vector<WrittenTrace> traces_{view_.devices.size()};
  // Wall time of the first event written; INT64_MIN if a device's trace is complete.
  int64_t first_event_ns_ = INT64_MAX;
  Memo default_pool_memo_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, Memo> pool_memos_;
  std::map<std::string_view, Memo> label_memos_;
  std::map<uint16_t, ShownPhase> phases_;

  Key action_{"action"}, addr_{"addr"}, size_{"size"}, stream_{"stream"}, time_us_{"time_us"},
      pool_id_{"pool_id"}, compile_context_{"compile_context"},
      user_metadata_{"user_metadata"}, internal_metadata_{"internal_metadata"},
      not_compiled_{"N/A"}, no_metadata_{""}, device_free_{"device_free"};
  std::vector<Key> action_names_{kActionNames, kActionNames + PYTRACER_ACTION_COUNT};
  Key device_{"device"}, address_{"address"}, total_size_{"total_size"},
      allocated_size_{"allocated_size"}, active_size_{"active_size"},
      requested_size_{"requested_size"}, segment_type_{"segment_type"},
      segment_pool_id_{"segment_pool_id"}, is_expandable_{"is_expandable"}, blocks_{"blocks"},
      state_{"state"}, small_{"small"}, large_{"large"}, category_{"category"},
      category_rule_{"category_rule"}, owner_{"owner"}, owners_{"owners"},
      holder_{"holder"}, allocation_{"allocation"}, birth_step_{"birth_step"};
  Key states_[3] = {Key("inactive"), Key("active_pending_free"), Key("active_allocated")};
  std::vector<Key> category_names_{kCategoryNames.begin(), kCategoryNames.end()};
  std::vector<Key> rule_names_{kRuleNames.begin(), kRuleNames.end()};
  std::vector<Key> role_names_{kRoleNames, kRoleNames + kTensorRoles};
};

}  // namespace pytracer
