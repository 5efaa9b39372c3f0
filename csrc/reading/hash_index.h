// Finds the row of a table that equals a new row, so that each row is kept once.
//
// 1. The rows are elsewhere. The index takes 8 bytes a slot and fills at most half of its slots.
// 2. No search takes more than kMostProbes steps: a file that was made so that all rows have the
//    same hash is refused.
// 3. Growing visits every slot and asks the Watch meanwhile.
// 4. One thread.
#pragma once

#include <cstdint>
#include <utility>

#include "column.h"
#include "watch.h"

namespace pytracer::reading {

class HashIndex {
 public:
  explicit HashIndex(Watch& watch) : watch_(watch) {}

  // Returns the row with this hash for which is_equal(row). If there is none, calls add(), which
  // appends the new row, and returns its number: `rows`, how many there are without it.
  template <class IsEqual, class Add>
  uint32_t intern(uint64_t hash, size_t rows, IsEqual is_equal, Add add) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    const auto next = static_cast<uint32_t>(rows);
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    size_t at = first_slot(tag);
    for (unsigned probe = 0; slots_[at].row != kFree; ++probe) {
      if (slots_[at].tag == tag && is_equal(slots_[at].row)) return slots_[at].row;
      if (probe == kMostProbes) damaged("hundreds of texts or stacks share one hash");
      at = (at + 1) & (slots_.size() - 1);
    }
    if (next == kFree) damaged("more than 2^32 texts, frames or stacks");
    slots_[at] = {tag, next};
    ++used_;
    add();
    return next;
  }

  uint64_t memory() const noexcept { return slots_.memory(); }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  static constexpr unsigned kMostProbes = 256;  // a million ordinary texts need up to 41
  struct Slot {
    uint32_t tag;  // the upper half of the hash
    uint32_t row;
  };

  size_t first_slot(uint32_t tag) const noexcept {
    return (tag * uint64_t{0x9e3779b97f4a7c15} >> 32) & (slots_.size() - 1);
  }
  void grow() {
    Column<Slot> old = std::move(slots_);
    slots_.resize(old.empty() ? 64 : 2 * old.size());
    for (size_t i = 0; i < slots_.size(); ++i) {
      watch_.tick();
      slots_[i] = {0, kFree};
    }
    for (const Slot& slot : old) {
      watch_.tick();
      if (slot.row == kFree) continue;
      size_t at = first_slot(slot.tag);
      while (slots_[at].row != kFree) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }

  Watch& watch_;
  Column<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace pytracer::reading
