// A trace undone, from the state that it led to: what was there before it, and every block's life.
//
// 1. Afterwards segments do not overlap, blocks are within segments and do not overlap, at any time
//    and by the least sizes they can have; a free follows its allocation. All else is a
//    ContradictionError.
// 2. The arrays are read by the constructor alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "history.h"

namespace pytracer::reading {

// Why an event, or a part of the state, does not fit; who knows which one it is names it.
struct Misfit {
  const char* reason;
};
std::string described(const char* what, int64_t size_bytes, int64_t address);
std::string described(const TraceView& trace, size_t event);

struct Block {
  static constexpr int32_t kBefore = -1;

  uint64_t address;
  uint64_t requested;
  uint64_t size;  // at least, until is_sized
  // From its beginning to the next block's, or the segment's end: the least there was in its life.
  uint64_t room = UINT64_MAX;
  uint32_t segment = 0;        // in the FreeSpace, while the trace runs forward
  bool is_sized = false;
  bool is_expandable = false;  // its segment
  bool is_followed = false;    // an allocation of the trace began where `room` ends
  int32_t alloc_event = kBefore;
  int32_t free_requested_event = kBefore;
  int32_t free_event;  // the number of events: not in the trace
  int32_t state_block = -1;
};

struct Segment {
  uint64_t end;
  bool is_expandable;
};

class Undo {
 public:
  Undo(const TraceView& trace, const StateView& state, const AllocatorRules& rules);

  std::vector<Block> blocks;
  std::vector<uint32_t> block_of;  // by event: the block that it allocates or frees
  // What was there before the trace, by address: indices in `blocks`; pieces of expandable segments
  // that touch are one.
  std::map<uint64_t, uint32_t> live;
  std::map<uint64_t, Segment> segments;

 private:
  struct Range {
    uint64_t begin, end;
  };
  static Range range(int64_t address, uint64_t bytes);
  void begin_with(const StateView& state);
  void undo(size_t event);
  void undo_alloc(size_t event);
  void undo_free_requested(size_t event);
  void undo_free_completed(size_t event);
  void add_block(const Block& block);
  void add_segment(Range place, bool is_expandable);
  void take_segment(Range place);
  void take_mapped(Range place);
  bool is_free(Range place) const;
  std::map<uint64_t, uint32_t>::iterator live_block(size_t event);

  const TraceView& trace_;
  const AllocatorRules& rules_;
  bool has_requests_ = false;  // there are events free_requested
  int64_t sudden_ = -1;        // the allocation of a block that went without one
};

}  // namespace pytracer::reading
