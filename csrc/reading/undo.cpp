#include "undo.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>

namespace pytracer::reading {

constexpr uint64_t kEndOfAddresses = uint64_t{1} << 62;  // no sum of two addresses overflows

std::string described(const char* what, int64_t size_bytes, int64_t address) {
  char text[80];
  std::snprintf(text, sizeof(text), " of %" PRId64 " bytes at %#" PRIx64, size_bytes,
                static_cast<uint64_t>(address));
  return std::string(what) + text;
}

std::string described(const TraceView& trace, size_t event) {
  return "event " + std::to_string(event) + ", " +
         described(kActionNames[trace.action[event]], trace.size_bytes[event], trace.address[event]);
}

namespace {

class Undo : public Undone {
 public:
  Undo(const TraceView& trace, const StateView& state, const AllocatorRules& rules, Watch& watch)
      : trace_(trace), rules_(rules), watch_(watch) {
    event_block.resize(trace.size);
    if (std::max(trace.size, state.blocks) >= INT32_MAX) {
      throw ContradictionError("more events or blocks than can be counted");
    }
    const auto frees = std::count(trace.action, trace.action + trace.size, kFreeCompleted);
    blocks.reserve(state.blocks + static_cast<size_t>(frees));
    load(state);
    size_t event = trace.size;
    try {
      while (event > 0) {
        watch_.tick();
        undo(--event);
      }
    } catch (const Misfit& misfit) {
      throw ContradictionError(described(trace, event) + ": " + misfit.reason);
    }
    if (unrequested_ < 0) return;
    if (has_requests_) {
      throw ContradictionError(described(trace, static_cast<size_t>(unrequested_)) +
                               ": the trace does not have the request to free it");
    }
    // The file leaves free_requested events out, as torch's recorder can. free_completed stands for
    // both.
    for (Block& block : blocks) {
      if (block.free_requested_event == Block::kBefore) block.free_requested_event = block.free_event;
    }
  }

 private:
  struct Range {
    uint64_t begin, end;
  };

  void load(const StateView& state) {
    for (size_t i = 0; i < state.segments; ++i) {
      watch_.tick();
      const int64_t address = state.segment_address[i], size = state.segment_size_bytes[i];
      try {
        add_segment(range(address, static_cast<uint64_t>(size)), state.is_expandable[i]);
      } catch (const Misfit& misfit) {
        throw ContradictionError(described("the state's segment", size, address) + ": " +
                                 misfit.reason);
      }
    }
    const auto last = static_cast<int32_t>(trace_.size);
    for (size_t i = 0; i < state.blocks; ++i) {
      watch_.tick();
      const int64_t address = state.block_address[i], size = state.block_size_bytes[i];
      try {
        Block block{};
        block.address = range(address, static_cast<uint64_t>(size)).begin;
        block.size = static_cast<uint64_t>(size);
        block.is_sized = true;
        block.requested = static_cast<uint64_t>(state.requested_bytes[i]);
        if (block.requested > block.size) throw Misfit{"less than was requested"};
        block.free_requested_event = state.is_pending[i] ? Block::kBefore : last;
        block.free_event = last;
        block.state_block = static_cast<int32_t>(i);
        add_block(block);
      } catch (const Misfit& misfit) {
        throw ContradictionError(described("the state's block", size, address) + ": " +
                                 misfit.reason);
      }
    }
  }

  void undo(size_t event) {
    const uint8_t action = trace_.action[event];
    if (action == kAlloc) return undo_alloc(event);
    if (action == kFreeRequested) return undo_free_requested(event);
    if (action == kFreeCompleted) return undo_free_completed(event);
    if (action > kSegmentUnmap) return;
    const Range place = range(trace_.address[event], static_cast<uint64_t>(trace_.size_bytes[event]));
    if (action != kSegmentAlloc && action != kSegmentMap) return add_segment(place, action == kSegmentUnmap);
    if (action == kSegmentAlloc && !segments.remove_segment(place.begin, place.end)) {
      throw Misfit{"there is no such segment afterwards"};
    }
    if (action == kSegmentMap && !segments.unmap(place.begin, place.end)) throw Misfit{"it is not mapped afterwards"};
    if (!is_free(place)) throw Misfit{"a block in it is older"};
  }

  void undo_alloc(size_t event) {
    const auto found = live_block(event);
    Block& block = blocks[found->second];
    block.alloc_event = static_cast<int32_t>(event);
    if (block.free_requested_event == Block::kBefore) unrequested_ = block.alloc_event;
    if (found != live.begin()) {
      Block& previous = blocks[std::prev(found)->second];
      if (!previous.is_sized && previous.room == block.address - previous.address) {
        previous.is_followed |= segments.at(block.address)->begin <= previous.address;
      }
    }
    live.erase(found);
  }

  void undo_free_requested(size_t event) {
    // Most frees complete at once, and the block is then known without a search.
    const bool is_at_once = event + 1 < trace_.size && trace_.action[event + 1] == kFreeCompleted &&
                            trace_.address[event + 1] == trace_.address[event] &&
                            trace_.size_bytes[event + 1] == trace_.size_bytes[event];
    if (is_at_once) {
      event_block[event] = event_block[event + 1];
    } else {
      live_block(event);
    }
    Block& block = blocks[event_block[event]];
    if (block.free_requested_event != Block::kBefore) throw Misfit{"it is not freed afterwards"};
    block.free_requested_event = static_cast<int32_t>(event);
    has_requests_ = true;
  }

  void undo_free_completed(size_t event) {
    Block block{};
    block.requested = static_cast<uint64_t>(trace_.size_bytes[event]);
    if (block.requested >= kEndOfAddresses) throw Misfit{"no such size"};
    block.size = rules_.rounded(block.requested);
    block.address = range(trace_.address[event], block.size).begin;
    block.free_event = static_cast<int32_t>(event);
    add_block(block);
    event_block[event] = static_cast<uint32_t>(blocks.size() - 1);
  }

  static Range range(int64_t address, uint64_t bytes) {
    const auto begin = static_cast<uint64_t>(address);
    if (begin >= kEndOfAddresses) throw Misfit{"no such address"};
    if (bytes == 0 || bytes > kEndOfAddresses - begin) throw Misfit{"no such size"};
    return {begin, begin + bytes};
  }

  void add_block(const Block& block) {
    if (blocks.size() >= UINT32_MAX) throw Misfit{"more blocks than can be counted"};
    const uint64_t end = block.address + block.size;
    const auto segment = segments.at(block.address);
    if (!segment || segment->end < end) throw Misfit{"there is no segment afterwards"};
    const auto [place, is_new] = live.emplace(block.address, static_cast<uint32_t>(blocks.size()));
    if (!is_new) throw Misfit{"another block is there afterwards"};
    blocks.push_back(block);
    Block& added = blocks.back();
    added.is_expandable = segment->segment == FreeSpace::kExpandable;
    added.room = segment->end - block.address;
    if (const auto next = std::next(place); next != live.end()) {
      if (next->first < end) throw Misfit{"another block is there afterwards"};
      added.room = std::min(added.room, next->first - block.address);
    }
    if (place != live.begin()) {
      Block& previous = blocks[std::prev(place)->second];
      const uint64_t room = block.address - previous.address;
      if (room < previous.size) throw Misfit{"another block is there afterwards"};
      previous.room = std::min(previous.room, room);
    }
  }

  void add_segment(Range place, bool is_expandable) {
    if (segments.overlaps(place.begin, place.end)) throw Misfit{"another segment is there afterwards"};
    is_expandable ? segments.map(place.begin, place.end) : segments.add_segment(place.begin, place.end);
  }

  bool is_free(Range place) const {
    const auto next = live.lower_bound(place.begin);
    if (next != live.end() && next->first < place.end) return false;
    if (next == live.begin()) return true;
    const Block& previous = blocks[std::prev(next)->second];
    return previous.address + previous.size <= place.begin;
  }

  // The block that exists after an event at the event's address.
  std::map<uint64_t, uint32_t>::iterator live_block(size_t event) {
    const auto found = live.find(static_cast<uint64_t>(trace_.address[event]));
    if (found == live.end()) throw Misfit{"there is no such block afterwards"};
    Block& block = blocks[found->second];
    const auto requested = static_cast<uint64_t>(trace_.size_bytes[event]);
    if (block.requested != requested) {
      // Where the state does not have the requested size, the reader filled in the block's size.
      const bool is_known = block.state_block < 0 || block.requested != block.size;
      if (is_known || requested > block.size) throw Misfit{"the block there has another size"};
      block.requested = requested;
    }
    event_block[event] = found->second;
    return found;
  }

  const TraceView& trace_;
  const AllocatorRules& rules_;
  Watch& watch_;
  bool has_requests_ = false;  // the trace has free_requested events
  int64_t unrequested_ = -1;   // the allocation of a block that was freed without such an event
};

}  // namespace

Undone undone(const TraceView& trace, const StateView& state, const AllocatorRules& rules, Watch& watch) {
  return Undo(trace, state, rules, watch);
}

}  // namespace pytracer::reading
