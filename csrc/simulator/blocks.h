// Blocks of memory, and the pools that order the free ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
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

}  // namespace pytracer::simulator
