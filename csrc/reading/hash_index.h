// Finds which of many numbered things is equal to a new one, so that each is kept once.
//
// 1. The things live elsewhere; the index has 8 bytes a slot, and at most half of the slots taken.
// 2. A file that is made so that everything has the same hash is refused: no search takes longer
//    than kMostProbes.
// 3. One thread.
#pragma once

#include <cstdint>
#include <utility>

#include "column.h"
#include "read_error.h"

namespace pytracer::reading {

inline uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

class HashIndex {
 public:
  // The thing with this hash for which is_equal(number), else `next`, which it then stands for.
  template <class IsEqual>
  uint32_t find_or_add(uint64_t hash, uint32_t next, IsEqual is_equal) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    size_t at = hash_slot(tag);
    for (unsigned probe = 0; slots_[at].number != kFree; ++probe) {
      if (slots_[at].tag == tag && is_equal(slots_[at].number)) return slots_[at].number;
      if (probe == kMostProbes) damaged("hundreds of texts or stacks share one hash");
      at = (at + 1) & (slots_.size() - 1);
    }
    if (next == kFree) damaged("more than 2^32 texts, frames or stacks");
    slots_[at] = {tag, next};
    ++used_;
    return next;
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr unsigned kMostProbes = 256;  // 41 in a million texts that were not chosen
  struct Slot {
    uint32_t tag;  // of the hash
    uint32_t number;
  };

  size_t hash_slot(uint32_t tag) const noexcept {
    return (tag * uint64_t{0x9e3779b97f4a7c15} >> 32) & (slots_.size() - 1);
  }
  void grow() {
    Column<Slot> old = std::move(slots_);
    slots_.resize(old.empty() ? 64 : 2 * old.size());
    for (size_t i = 0; i < slots_.size(); ++i) slots_[i] = {0, kFree};
    for (const Slot& slot : old) {
      if (slot.number == kFree) continue;
      size_t at = hash_slot(slot.tag);
      while (slots_[at].number != kFree) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }

  Column<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace pytracer::reading
