#include "history.h"

#include <algorithm>

#include "undo.h"

namespace pytracer::reading {

namespace {

// Decides whether requests were padded where the state does not say. A block without room for the
// padding shows that there is none; a small block that ends exactly after the padding shows it.
AllocatorRules decide_padding(AllocatorRules rules, const std::vector<Block>& blocks, Watch& watch) {
  if (rules.is_padding_known) return rules;
  bool is_padded = false;
  for (const Block& block : blocks) {
    watch.tick();
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

// Runs the trace forward, with every block at its address.
class ForwardReplay {
 public:
  ForwardReplay(const TraceView& trace, Undone& undone, const AllocatorRules& rules, History& history,
          Watch& watch)
      : trace_(trace), undone_(undone), rules_(decide_padding(rules, undone.blocks, watch)),
        history_(history), watch_(watch) {}

  void run() {
    begin();
    add_sample(0);
    size_t event = 0;
    try {
      for (; event < trace_.size; ++event) {
        watch_.tick();
        step(event);
        add_sample(event + 1);
      }
    } catch (const Misfit& misfit) {
      throw ContradictionError(described(trace_, event) + ": " + misfit.reason);
    }
  }

 private:
  void begin() {
    for (Block& block : undone_.blocks) {
      watch_.tick();
      const uint64_t padded = rules_.rounded(block.requested + rules_.padding_bytes);
      // A block of a restored allocator state, as CUDA graphs have it, requested its full size.
      if (!block.is_sized && padded <= block.room) block.size = padded;
    }
    for (const auto& [address, index] : undone_.live) {
      watch_.tick();
      Block& block = undone_.blocks[index];
      if (!block.is_sized) size_older(block);
      try {
        allocate(block);
      } catch (const Misfit& misfit) {
        throw ContradictionError(described("an older block", static_cast<int64_t>(block.size),
                                           static_cast<int64_t>(address)) + ": " + misfit.reason);
      }
      if (block.free_requested_event == Block::kBefore) allocated_ -= block.size;
    }
  }

  void step(size_t event) {
    const auto begin = static_cast<uint64_t>(trace_.address[event]);
    const uint64_t end = begin + static_cast<uint64_t>(trace_.size_bytes[event]);
    switch (trace_.action[event]) {
      case kAlloc: return allocate(undone_.blocks[undone_.event_block[event]]);
      case kFreeRequested:
        allocated_ -= undone_.blocks[undone_.event_block[event]].size;
        return;
      case kFreeCompleted: {
        const Block& block = undone_.blocks[undone_.event_block[event]];
        if (block.free_requested_event == block.free_event) allocated_ -= block.size;
        free_.give_back(block.address, block.address + block.size, block.segment);
        requested_ -= block.requested;
        active_ -= block.size;
        return;
      }
      case kSegmentAlloc: return free_.add_segment(begin, end);
      case kSegmentMap: return free_.map(begin, end);
      case kSegmentFree:
        if (!free_.remove_segment(begin, end)) throw Misfit{"the memory was not free before it"};
        return;
      case kSegmentUnmap:
        if (!free_.unmap(begin, end)) throw Misfit{"the memory was not free before it"};
        return;
      default: return;
    }
  }

  void allocate(Block& block) {
    const auto extent = free_.at(block.address);
    if (!extent) throw Misfit{"the memory was not free before it"};
    const uint64_t room = extent->end - block.address;
    if (!block.is_sized && block.alloc_event != Block::kBefore) size_new(block, room);
    if (block.size > room) throw Misfit{"the memory was not all free before it"};
    free_.take(block.address, block.address + block.size);
    block.segment = extent->segment;
    requested_ += block.requested;
    allocated_ += block.size;
    active_ += block.size;
    if (!block.is_sized) {
      history_.exact_from = std::max(history_.exact_from, block.free_event + int64_t{1});
    }
    add_lifetime(block);
  }

  // Marks the block as sized if its least possible size is its size, whatever memory was free when it
  // was allocated.
  bool size_by_rule(Block& block) const {
    block.is_sized = block.room == block.size ||
                     (rules_.are_known && rules_.has_pools &&
                      (block.is_expandable || block.size <= kSmallBytes));
    return block.is_sized;
  }

  // The large pool splits off only remainders of more than 1 MiB, and has no smaller blocks. So a block
  // with less room than that beyond its size was never next to another block in that room.
  void size_older(Block& block) const {
    if (size_by_rule(block)) return;
    if (rules_.are_known && !rules_.may_expand &&
        (!rules_.has_pools || block.room - block.size <= kSmallBytes)) {
      block.size = block.room;
      block.is_sized = true;
    } else {
      size_followed(block);
    }
  }

  void size_new(Block& block, uint64_t extent) const {
    if (size_by_rule(block) || extent < block.size) return;
    const bool splits = block.size < rules_.max_split_bytes && extent - block.size > kSmallBytes;
    // While expandable segments are on, every remainder is split off; when they were on is unknown.
    if (!rules_.are_known || (rules_.may_expand && !splits)) return size_followed(block);
    // If another block began in the remainder, the remainder was split off.
    if (!rules_.has_pools || (!splits && block.room == extent)) block.size = extent;
    block.is_sized = true;
  }

  // A block begins where another block ends, so the following block shows where this one ended.
  void size_followed(Block& block) const {
    if (!block.is_followed || rules_.aligns) return;
    block.size = block.room;
    block.is_sized = true;
  }

  void add_lifetime(const Block& block) {
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

  void add_sample(size_t sample) {
    // The columns hold zeroes, whose pages take no memory until something is written to them.
    const auto note = [sample](auto& column, auto value) {
      if (value != 0) column[sample] = static_cast<std::decay_t<decltype(column[sample])>>(value);
    };
    Usage& usage = history_.usage;
    note(usage.requested_bytes, requested_);
    note(usage.allocated_bytes, allocated_);
    note(usage.active_bytes, active_);
    note(usage.reserved_bytes, free_.reserved_bytes());
    note(usage.inactive_split_bytes, free_.split_bytes());
    note(usage.largest_free_bytes, free_.largest_bytes());
    note(usage.free_squares, free_.sum_of_squares());
    note(usage.segments, free_.segments());
  }

  const TraceView& trace_;
  Undone& undone_;
  const AllocatorRules rules_;
  History& history_;
  Watch& watch_;
  FreeSpace free_{std::move(undone_.segments)};
  uint64_t requested_ = 0, allocated_ = 0, active_ = 0;
};

}  // namespace

History replay(const TraceView& trace, const StateView& state, const AllocatorRules& rules, Watch& watch) {
  Undone before = undone(trace, state, rules, watch);
  History history(trace.size);
  ForwardReplay(trace, before, rules, history, watch).run();
  return history;
}

}  // namespace pytracer::reading
