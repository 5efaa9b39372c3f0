// Undoes a trace from the final state: yields the state before the trace and every block's lifetime.
//
// 1. Afterwards, at any time and by their least possible sizes, segments do not overlap, blocks are
//    within segments and do not overlap, and a free follows its allocation. Any other trace is a
//    ContradictionError.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "free_space.h"
#include "history.h"

namespace pytracer::reading {

// Why an event, or a part of the state, does not fit. The catcher names the event or the part.
struct Misfit {
  const char* reason;
};
std::string described(const char* what, int64_t size_bytes, int64_t address);
std::string described(const TraceView& trace, size_t event);

struct Block {
  static constexpr int32_t kBefore = -1;

  uint64_t address;
  uint64_t requested;
  uint64_t size;  // the least possible size, until is_sized
  // The least distance, in the block's lifetime, to the next block or to the segment's end.
  uint64_t room = UINT64_MAX;
  uint32_t segment = 0;        // of the FreeSpace, while the trace runs forward
  bool is_sized = false;       // `size` is exact
  bool is_expandable = false;  // the segment is expandable
  bool is_followed = false;    // an allocation of the trace began where `room` ends
  int32_t alloc_event = kBefore;
  int32_t free_requested_event = kBefore;
  int32_t free_event;  // the number of events if the trace does not free the block
  int32_t state_block = -1;
};

struct Undone {
  std::vector<Block> blocks;
  std::vector<uint32_t> event_block;  // by event: the block that it allocates or frees
  // The state before the trace: indices into `blocks` by address, and the segments, as if all were free.
  std::map<uint64_t, uint32_t> live;
  FreeSpace segments;
};
Undone undone(const TraceView& trace, const StateView& state, const AllocatorRules& rules, Watch& watch);

}  // namespace pytracer::reading
