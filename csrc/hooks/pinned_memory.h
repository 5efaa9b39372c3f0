// What the host hook knows of torch's pinned memory: its segments, each with one block, and what
// became of them. torch's allocator of pinned memory reports nothing, so the hook's events are
// derived from the calls of its interface.
//
// 1. Methods are called under the hook's lock, in an order that threads cannot swap for one address:
//    took() after torch's allocator has returned, requested() before it is called.
// 2. `Report` gets the events that torch's own recorder of pinned memory would write:
//    report(action, address, segment). It never throws.
// 3. Bounded by kMaxSegments. Methods may throw std::bad_alloc, and then know less than there is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "hook_abi.h"

namespace {

constexpr size_t kMaxSegments = 1u << 17;

struct PinnedSegment {
  uint64_t size = 0;
  uint64_t requested = 0;  // by the program, for the block
  uint64_t pool_high = 0, pool_low = 0;
  const void* context = nullptr;  // the block's context in torch; null: unknown
  uint64_t order = 0;             // of the request of its free, or of its completion
  uint8_t state = PYTRACER_ACTIVE_ALLOCATED;  // enum pytracer_block_state
  bool used_on_stream = false;
};

// What torch's allocator says of a segment.
struct PinnedState {
  uint64_t address, size, pool_high, pool_low;
  bool allocated, active;
};

template <class Report>
class PinnedMemory {
 public:
  using Segments = std::map<uint64_t, PinnedSegment>;
  explicit PinnedMemory(Report report) : report_(report) {}

  const Segments& segments() const noexcept { return segments_; }
  bool has_room() const noexcept { return segments_.size() < kMaxSegments; }
  // Whether poll() may find anything.
  bool is_waiting() const noexcept { return !waiting_.empty(); }

  // A segment that is older than the hook.
  void seed(const PinnedState& state) {
    if (!has_room()) return;
    PinnedSegment& segment = segments_[state.address];
    segment = {state.size, state.size, state.pool_high, state.pool_low};
    segment.order = ++order_;
    segment.state = state.allocated ? PYTRACER_ACTIVE_ALLOCATED
                    : state.active  ? PYTRACER_ACTIVE_PENDING_FREE : PYTRACER_INACTIVE;
    if (state.active) waiting_[segment.order] = state.address;
  }

  // A block was allocated.
  void took(uint64_t address, const PinnedSegment& given) {
    auto found = segments_.find(address);
    if (found != segments_.end()) {
      PinnedSegment& known = found->second;
      complete(address, known);
      const bool is_same = known.size == given.size &&
                           (known.context == nullptr || known.context == given.context);
      if (!is_same) {  // returned to the system unseen
        release(found);
        found = segments_.end();
      }
    }
    if (found == segments_.end()) {
      report_(PYTRACER_SEGMENT_ALLOC, address, given);
      found = segments_.emplace(address, given).first;
    }
    found->second = given;
    report_(PYTRACER_ALLOC, address, given);
  }

  // A stream uses `data`, which is in a block.
  void used(uint64_t data) noexcept {
    auto found = segments_.upper_bound(data);
    if (found == segments_.begin() || data - (--found)->first >= found->second.size) return;
    found->second.used_on_stream = true;
  }

  // The program frees the block at this address, with this context. `may_wait`: whether poll() will
  // tell when the streams have finished with it; else the free counts as completed. `is_cached`:
  // whether torch keeps a block of this size.
  template <class IsCached>
  void requested(uint64_t address, const void* context, bool may_wait, IsCached is_cached) {
    const auto found = segments_.find(address);
    if (found == segments_.end()) return;
    PinnedSegment& segment = found->second;
    if (segment.context != context || segment.state != PYTRACER_ACTIVE_ALLOCATED) return;
    report_(PYTRACER_FREE_REQUESTED, found->first, segment);
    segment.state = PYTRACER_ACTIVE_PENDING_FREE;
    segment.order = ++order_;
    if (segment.used_on_stream && may_wait) {
      waiting_[segment.order] = found->first;
      return;
    }
    complete(found->first, segment);
    if (!is_cached(segment.size)) release(found);
  }

  // Compares with what torch's allocator has now: frees that were completed, that of the block at
  // `taken` among them, and, after `emptied`, segments that were returned to the system.
  void poll(const std::vector<PinnedState>& states, uint64_t taken, bool emptied) {
    std::unordered_map<uint64_t, const PinnedState*> now;
    for (const PinnedState& state : states) now[state.address] = &state;
    std::vector<uint64_t> done;
    for (const auto& [order, address] : waiting_) {
      const auto found = now.find(address);
      const bool is_active = found != now.end() && found->second->active;
      if (!is_active || address == taken) done.push_back(address);
    }
    for (const uint64_t address : done) complete(address, segments_.at(address));
    if (emptied) {
      release_free([&](uint64_t address) { return now.count(address) == 0; });
    } else {
      for (const uint64_t address : done) {
        if (now.count(address) == 0) release(segments_.find(address));
      }
    }
  }

  // All cached segments were returned to the system.
  void emptied() {
    release_free([](uint64_t) { return true; });
  }

  // Memory that the program pinned itself.
  void pinned(uint64_t address, uint64_t size) {
    if (!has_room()) return;
    unpinned(address);
    PinnedSegment segment;
    segment.size = segment.requested = size;
    took(address, segment);
  }
  void unpinned(uint64_t address) {
    const auto found = segments_.find(address);
    if (found == segments_.end() || found->second.context != nullptr) return;
    if (found->second.state == PYTRACER_ACTIVE_ALLOCATED) {
      report_(PYTRACER_FREE_REQUESTED, address, found->second);
      found->second.state = PYTRACER_ACTIVE_PENDING_FREE;
    }
    complete(address, found->second);
    release(found);
  }

 private:
  // The block is free from now on, if it was not.
  void complete(uint64_t address, PinnedSegment& segment) {
    waiting_.erase(segment.order);
    if (segment.state == PYTRACER_INACTIVE) return;
    if (segment.state == PYTRACER_ACTIVE_ALLOCATED) {
      report_(PYTRACER_FREE_REQUESTED, address, segment);
    }
    report_(PYTRACER_FREE_COMPLETED, address, segment);
    segment.state = PYTRACER_INACTIVE;
    segment.order = ++order_;
  }

  void release(typename Segments::iterator segment) {
    report_(PYTRACER_SEGMENT_FREE, segment->first, segment->second);
    segments_.erase(segment);
  }

  // torch empties its lists of free blocks, one for each power of two, in their order.
  template <class Condition>
  void release_free(Condition is_gone) {
    std::vector<typename Segments::iterator> gone;
    for (auto each = segments_.begin(); each != segments_.end(); ++each) {
      if (each->second.state == PYTRACER_INACTIVE && is_gone(each->first)) gone.push_back(each);
    }
    const auto list = [](uint64_t size) { return size <= 1 ? 0 : 64 - __builtin_clzll(size - 1); };
    std::sort(gone.begin(), gone.end(), [&](const auto& a, const auto& b) {
      const auto &one = a->second, &other = b->second;
      return std::pair(list(one.size), one.order) < std::pair(list(other.size), other.order);
    });
    for (const auto& segment : gone) release(segment);
  }

  Report report_;
  Segments segments_;                     // by address
  std::map<uint64_t, uint64_t> waiting_;  // addresses by order, for poll()
  uint64_t order_ = 0;
};

}  // namespace
