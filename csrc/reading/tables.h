// What a snapshot file holds, as columns.
//
// 1. Rows are in the file's order. Texts, frames, stacks, pools and actions are kept once and
//    referred to by number.
// 2. The settings, the annotations and the `pytracer` key stay as values in the Heap.
#pragma once

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "column.h"
#include "interned_rows.h"
#include "strings.h"
#include "value.h"

namespace pytracer::reading {

constexpr int64_t kNoTime = -1;

struct EventColumns {
  Column<uint8_t> action;
  Column<int64_t> address, size, stream, time;
  Column<uint32_t> stack, pool, compile_context, user_metadata;

  uint64_t memory() const noexcept {
    return memory_of(action, address, size, stream, time, stack, pool, compile_context,
                     user_metadata);
  }
};

// Of the allocations that the file lacks: those of blocks whose free it has.
struct AllocationColumns {
  Column<int64_t> event;  // the free's row
  Column<uint32_t> stack;
  Column<int64_t> birth_step;

  uint64_t memory() const noexcept { return memory_of(event, stack, birth_step); }
};

enum BlockState : uint8_t { kInactive, kPendingFree, kAllocated, kNoState };

struct BlockColumns {
  Column<int64_t> segment, address, size, requested;  // address -1: the file does not have it
  Column<uint8_t> state;  // enum BlockState
  Column<uint32_t> stack, category, category_rule, owner, holder;
  Column<int64_t> owners, birth_step;

  uint64_t memory() const noexcept {
    return memory_of(segment, address, size, requested, state, stack, category, category_rule,
                     owner, holder, owners, birth_step);
  }
};

struct SegmentColumns {
  Column<int64_t> device, address, size, stream, first_block;
  Column<uint32_t> kind, pool, stack;
  Column<bool> is_expandable;

  uint64_t memory() const noexcept {
    return memory_of(device, address, size, stream, first_block, kind, pool, stack, is_expandable);
  }
};

struct RowRange {
  uint64_t begin, end;
};

struct Tables {
  explicit Tables(Watch& watch) : strings(watch), stacks(watch), frames(watch), pools(watch) {}

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

}  // namespace pytracer::reading
