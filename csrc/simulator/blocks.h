// Blocks of memory, and the pools that order the free ones.
#pragma once

#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <vector>

#include "simulator/rules.h"

namespace pytracer::simulator {

struct BlockPool;

struct Segment {
  uint64_t address;
  uint64_t range_bytes;  // mapped and unmapped
  uint64_t page_bytes;   // 0: the segment does not expand
  uint64_t number;       // counts the created segments
};

// A part of a segment. The parts of a segment are a list in the order of their addresses.
struct Block {
  uint64_t stream = 0;
  uint64_t size = 0;
  uint64_t address = 0;
  uint64_t number = 0;  // counts the created blocks
  BlockPool* pool = nullptr;
  Block* prev = nullptr;
  Block* next = nullptr;
  Segment* segment = nullptr;
  uint64_t calls_at_insertion = 0;  // BlockPool::calls
  bool is_mapped = true;
  bool is_allocated = false;
  bool counts = false;  // in the allocated bytes: not after the program has freed the block

  bool is_split() const { return prev != nullptr || next != nullptr; }
  bool expands() const { return segment->page_bytes != 0; }
};

// Streams are ordered by their numbers, as the allocator orders them by their handles: the order
// matters to nothing but the order in which cached blocks are given back.
struct BySize {
  Tie tie;
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return a->stream < b->stream;
    if (a->size != b->size) return a->size < b->size;
    // A search key, which has no segment, precedes all blocks of its size.
    if (a->segment == nullptr || b->segment == nullptr) return a->segment == nullptr && b->segment != nullptr;
    if (tie == Tie::by_address) return a->address < b->address;
    if (tie == Tie::by_creation) return a->number < b->number;
    if (a->segment != b->segment) return a->segment->number < b->segment->number;
    return a->address < b->address;
  }
};

struct ByAddress {
  bool operator()(const Block* a, const Block* b) const {
    return a->stream != b->stream ? a->stream < b->stream : a->address < b->address;
  }
};

struct BlockPool {
  BlockPool(bool small, bool belongs_to_program, Tie tie)
      : is_small(small), is_private(belongs_to_program), free(BySize{tie}) {}

  void insert(Block* block) {
    block->calls_at_insertion = calls;
    free.insert(block);
  }
  uint64_t age(const Block* block) const { return calls - block->calls_at_insertion; }

  const bool is_small;
  const bool is_private;
  std::set<Block*, BySize> free;
  std::set<Block*, ByAddress> unmapped;
  uint64_t calls = 0;  // of find_free(), while collection is on
};

// Owns values that never move, and reuses the discarded ones.
template <class T>
class Arena {
 public:
  T* make(const T& value) {
    if (unused_.empty()) return &values_.emplace_back(value);
    T* place = unused_.back();
    unused_.pop_back();
    *place = value;
    return place;
  }
  void discard(T* value) { unused_.push_back(value); }

 private:
  std::deque<T> values_;
  std::vector<T*> unused_;
};

// The addresses of a device. The lowest free range that is large enough is given out.
class Addresses {
 public:
  uint64_t take(uint64_t bytes) {
    bytes = whole(bytes);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < bytes) continue;
      const uint64_t start = range->first, left = range->second - bytes;
      free_.erase(range);
      if (left != 0) free_[start + bytes] = left;
      return start;
    }
    if (bytes > kEnd - end_) throw too_many();
    end_ += bytes;
    return end_ - bytes;
  }

  // Takes a range that begins at `start`, or, if that is taken, behind all ranges.
  uint64_t take_at(uint64_t start, uint64_t bytes) {
    if (start > end_) {
      free_[end_] = start - end_;
      end_ = start;
    }
    bytes = whole(bytes);
    if (bytes > kEnd - end_) throw too_many();
    end_ += bytes;
    return end_ - bytes;
  }

  void give_back(uint64_t start, uint64_t bytes) {
    bytes = whole(bytes);
    auto next = free_.lower_bound(start);
    if (next != free_.end() && start + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == start) {
        start = previous->first;
        bytes += previous->second;
        free_.erase(previous);
      }
    }
    if (start + bytes == end_) {
      end_ = start;
    } else {
      free_[start] = bytes;
    }
  }

  static uint64_t whole(uint64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes; }

 private:
  static std::length_error too_many() {
    return std::length_error("the segments of these requests take more than 2**62 addresses");
  }

  static constexpr uint64_t kEnd = uint64_t{1} << 62;
  std::map<uint64_t, uint64_t> free_;  // begin to size
  uint64_t end_ = kUnitBytes;
};

}  // namespace pytracer::simulator
