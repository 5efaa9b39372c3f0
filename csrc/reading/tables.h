// What a snapshot file holds, as columns.
//
// 1. Rows are in the file's order. Texts, frames, stacks, pools and actions are kept once and
//    referred to by number.
// 2. The orders of columns_of() are those in which Python gets the columns (reader.py).
// 3. The settings, the annotations and the `pytracer` key stay as values in the Heap.
#pragma once

#include <set>
#include <vector>

#include "byte_reader.h"
#include "interned_rows.h"

namespace pytracer::reading {

constexpr int64_t kNoTime = -1;

struct EventColumns : Table<EventColumns> {
  Column<uint8_t> action;
  Column<int64_t> address, size, stream, time;
  Column<uint32_t> stack, pool, compile_context, user_metadata;

  template <class Self>
  static auto columns_of(Self& self) {
    return std::tie(self.action, self.address, self.size, self.stream, self.time, self.stack, self.pool,
                    self.compile_context, self.user_metadata);
  }
};

// Of the allocations that the file lacks: those of blocks whose free it has.
struct AllocationColumns : Table<AllocationColumns> {
  Column<int64_t> event;  // the free's row
  Column<uint32_t> stack;
  Column<int64_t> birth_step;

  template <class Self>
  static auto columns_of(Self& self) {
    return std::tie(self.event, self.stack, self.birth_step);
  }
};

enum BlockState : uint8_t { kInactive, kPendingFree, kAllocated, kNoState };

struct BlockColumns : Table<BlockColumns> {
  Column<int64_t> segment, address, size, requested;  // address -1: the file does not have it
  Column<uint8_t> state;  // enum BlockState
  Column<uint32_t> stack, category, category_rule, owner, holder;
  Column<int64_t> owners, birth_step;

  template <class Self>
  static auto columns_of(Self& self) {
    return std::tie(self.segment, self.address, self.size, self.requested, self.state, self.stack, self.category,
                    self.category_rule, self.owner, self.holder, self.owners, self.birth_step);
  }
};

struct SegmentColumns : Table<SegmentColumns> {
  Column<int64_t> device, address, size, stream, first_block;
  Column<uint32_t> kind, pool, stack;
  Column<bool> is_expandable;

  template <class Self>
  static auto columns_of(Self& self) {
    return std::tie(self.device, self.address, self.size, self.stream, self.kind, self.pool, self.is_expandable,
                    self.stack, self.first_block);
  }
};

struct RowRange {
  uint64_t begin, end;
};

struct Tables {
  explicit Tables(Watch& watch) : strings(watch), stacks(watch), frames(watch), pools(watch) {
    pools.intern(0, 0);
  }

  // Without the Heap and the Strings.
  uint64_t memory() const noexcept {
    return memory_of(events, allocations, blocks, segments, stacks, frames, pools, actions);
  }

  Heap heap;
  Strings strings;
  EventColumns events;
  AllocationColumns allocations;
  BlockColumns blocks;
  SegmentColumns segments;
  StackRows stacks;
  FrameRows frames;
  PoolRows pools;
  ActionRows actions;
  std::set<std::pair<std::string_view, uint32_t>> unknown_keys;  // kinds of rows, texts
  std::vector<RowRange> traces;    // rows of events, by device
  int64_t host_device = -1;        // the trace of pinned host memory; -1: none
  RowRange device_segments{0, 0};  // rows of segments that are in the snapshot's lists
  RowRange device_blocks{0, 0};    // their blocks
  Value allocator_settings, external_annotations, metadata;
};

// Fills `tables`, which are empty. Throws ReadError if the file is no snapshot or is damaged.
void read_snapshot(ByteReader& in, Tables& tables, Watch& watch);

}  // namespace pytracer::reading
