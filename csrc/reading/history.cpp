#include "history.h"

#include <algorithm>

#include "free_space.h"
#include "undo.h"

namespace pytracer::reading {

namespace {

// With the padding, where the state does not tell whether there is any: a block without room for it
// has none, and a small one that ends behind it has it.
AllocatorRules with_padding(AllocatorRules rules, const std::vector<Block>& blocks) {
  if (rules.is_padding_known) return rules;
  bool is_padded = false;
  for (const Block& block : blocks) {
    if (block.is_sized) continue;
    const uint64_t padded = rules.rounded(block.requested + rules.padding_bytes);
    if (block.room < padded) {
      rules.padding_bytes = 0;
      return rules;
    }
    is_padded |= block.is_followed && block.room == padded && padded != block.size &&
                 padded <= kSmallBytes;
  }
  if (!is_padded) {
    rules.padding_bytes = 0;
    rules.are_known = false;
  }
  return rules;
}

// The trace, run forward with every block at its address.
class Forward {
 public:
  Forward(const TraceView& trace, Undo& undone, const AllocatorRules& rules, History& history)
      : trace_(trace),
        undone_(undone),
        rules_(with_padding(rules, undone.blocks)),
        history_(history) {}

  void run() {
    begin();
    note_levels(0);
    size_t event = 0;
    try {
      for (; event < trace_.size; ++event) {
        step(event);
        note_levels(event + 1);
      }
    } catch (const Misfit& misfit) {
      throw ContradictionError(described(trace_, event) + ": " + misfit.reason);
    }
  }

 private:
  void begin();
  void step(size_t event);
  void allocate(Block& block);
  void complete_free(const Block& block);
  void add_segment(uint64_t begin, uint64_t end, bool is_expandable);
  void size_older(Block& block) const;
  void size_new(Block& block, uint64_t extent) const;
  bool size_by_rule(Block& block) const;
  void size_followed(Block& block) const;
  void note_block(const Block& block);
  void note_levels(size_t entry);

  const TraceView& trace_;
  Undo& undone_;
  const AllocatorRules rules_;
  History& history_;
  FreeSpace free_;
  uint64_t requested_ = 0, allocated_ = 0, active_ = 0, reserved_ = 0, segments_ = 0;
};

void Forward::begin() {
  for (const auto& [address, segment] : undone_.segments) {
    add_segment(address, segment.end, segment.is_expandable);
  }
  for (Block& block : undone_.blocks) {
    const uint64_t padded = rules_.rounded(block.requested + rules_.padding_bytes);
    // A block that was restored, as graphs' are, has its size for request.
    if (!block.is_sized && padded <= block.room) block.size = padded;
  }
  for (const auto& [address, index] : undone_.live) {
    Block& block = undone_.blocks[index];
    if (!block.is_sized) size_older(block);
    try {
      allocate(block);
    } catch (const Misfit& misfit) {
      throw ContradictionError(described("an older block", static_cast<int64_t>(block.size),
                                         static_cast<int64_t>(address)) +
                               ": " + misfit.reason);
    }
    if (block.free_requested_event == Block::kBefore) allocated_ -= block.size;
  }
}

void Forward::step(size_t event) {
  const auto begin = static_cast<uint64_t>(trace_.address[event]);
  const uint64_t end = begin + static_cast<uint64_t>(trace_.size_bytes[event]);
  switch (trace_.action[event]) {
    case kAlloc:
      return allocate(undone_.blocks[undone_.block_of[event]]);
    case kFreeRequested:
      allocated_ -= undone_.blocks[undone_.block_of[event]].size;
      return;
    case kFreeCompleted:
      return complete_free(undone_.blocks[undone_.block_of[event]]);
    case kSegmentAlloc:
    case kSegmentMap:
      return add_segment(begin, end, trace_.action[event] == kSegmentMap);
    case kSegmentFree:
      if (!free_.remove_segment(begin, end)) throw Misfit{"it is not free before it"};
      --segments_;
      reserved_ -= end - begin;
      return;
    case kSegmentUnmap:
      if (!free_.unmap(begin, end)) throw Misfit{"it is not free before it"};
      reserved_ -= end - begin;
      return;
    default:
      return;
  }
}

void Forward::add_segment(uint64_t begin, uint64_t end, bool is_expandable) {
  if (is_expandable) {
    free_.map(begin, end);
  } else {
    free_.add_segment(begin, end);
    ++segments_;
  }
  reserved_ += end - begin;
}

void Forward::allocate(Block& block) {
  const auto extent = free_.at(block.address);
  if (!extent) throw Misfit{"it is not free before it"};
  const uint64_t room = extent->end - block.address;
  if (!block.is_sized && block.alloc_event != Block::kBefore) size_new(block, room);
  if (block.size > room) throw Misfit{"it is not all free before it"};
  free_.take(block.address, block.address + block.size);
  block.segment = extent->segment;
  requested_ += block.requested;
  allocated_ += block.size;
  active_ += block.size;
  if (!block.is_sized) history_.exact_from = std::max(history_.exact_from, block.free_event + int64_t{1});
  note_block(block);
}

void Forward::complete_free(const Block& block) {
  if (block.free_requested_event == block.free_event) allocated_ -= block.size;
  free_.give_back(block.address, block.address + block.size, block.segment);
  requested_ -= block.requested;
  active_ -= block.size;
}

// Whether the least that a block can have is what it has, whatever was free when it came.
bool Forward::size_by_rule(Block& block) const {
  block.is_sized = block.room == block.size ||
                   (rules_.are_known && rules_.has_pools &&
                    (block.is_expandable || block.size <= kSmallBytes));
  return block.is_sized;
}

// Only what is left of more than 1 MiB is split off in the large pool, and no block of that pool is
// smaller: in so little room nothing was ever beside it.
void Forward::size_older(Block& block) const {
  if (size_by_rule(block)) return;
  if (rules_.are_known && !rules_.may_expand &&
      (!rules_.has_pools || block.room - block.size <= kSmallBytes)) {
    block.size = block.room;
    block.is_sized = true;
  } else {
    size_followed(block);
  }
}

void Forward::size_new(Block& block, uint64_t extent) const {
  if (size_by_rule(block) || extent < block.size) return;
  const bool splits = block.size < rules_.max_split_bytes && extent - block.size > kSmallBytes;
  // While segments expand, all that is left is split off; when they did is not told.
  if (!rules_.are_known || (rules_.may_expand && !splits)) return size_followed(block);
  // Where something began in what was left, that was split off.
  if (!rules_.has_pools || (!splits && block.room == extent)) block.size = extent;
  block.is_sized = true;
}

// What the allocator hands out begins where another block ends.
void Forward::size_followed(Block& block) const {
  if (!block.is_followed || rules_.aligns) return;
  block.size = block.room;
  block.is_sized = true;
}

void Forward::note_block(const Block& block) {
  Lifetimes& blocks = history_.blocks;
  blocks.address.push_back(static_cast<int64_t>(block.address));
  blocks.size_bytes.push_back(static_cast<int64_t>(block.size));
  blocks.requested_bytes.push_back(static_cast<int64_t>(block.requested));
  blocks.alloc_event.push_back(block.alloc_event);
  blocks.free_requested_event.push_back(block.free_requested_event);
  blocks.free_event.push_back(block.free_event);
  blocks.state_block.push_back(block.state_block);
  blocks.is_sized.push_back(block.is_sized);
}

void Forward::note_levels(size_t entry) {
  // Zeroes are there already, and take no memory as long as nothing is written.
  const auto note = [entry](auto& column, auto value) {
    if (value != 0) column[entry] = static_cast<std::decay_t<decltype(column[entry])>>(value);
  };
  Levels& levels = history_.levels;
  note(levels.requested_bytes, requested_);
  note(levels.allocated_bytes, allocated_);
  note(levels.active_bytes, active_);
  note(levels.reserved_bytes, reserved_);
  note(levels.inactive_split_bytes, free_.split_bytes());
  note(levels.largest_free_bytes, free_.largest_bytes());
  note(levels.free_squares, free_.sum_of_squares());
  note(levels.segments, segments_);
}

}  // namespace

History replay(const TraceView& trace, const StateView& state, const AllocatorRules& rules) {
  Undo undone(trace, state, rules);
  History history(trace.size);
  Forward(trace, undone, rules, history).run();
  return history;
}

}  // namespace pytracer::reading
