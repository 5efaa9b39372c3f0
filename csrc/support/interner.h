// Items of one kind, each stored once: an item's number, from 1 on, is its place in an array.
//
// 1. Item has `uint64_t hash() const` and `uint32_t next`, which belongs to the interner. The hash of
//    an item that nobody looks for any more may change.
// 2. One writer at a time. find() may run on any thread meanwhile: it then may miss an item, but
//    never finds another one. What `matches` reads, and add() does not write, is the user's concern.
// 3. Items keep their numbers and places. Item 0 is all zeroes, and stands for "none".
// 4. In a box, the array's count is the items' count.
#pragma once

#include <cstdint>

#include "support/linear_hash.h"
#include "support/reserved_array.h"

namespace pytracer {

template <class Item>
class Interner {
 public:
  explicit Interner(uint32_t most, const BoxPart& part = {}) : index_(most, part) {
    index_.items().back(1);
  }

  // The number of an item with this hash for which `matches(number)`; 0: there is none.
  template <class Matches>
  uint32_t find(uint64_t hash, Matches matches) const noexcept {
    return index_.find(hash, matches);
  }
  // Only if there is room, and the item is not there yet.
  uint32_t add(const Item& item) noexcept {
    const uint32_t number = count() + 1;
    index_.items()[number] = item;
    index_.items().set_count(number);
    index_.insert(number);
    return number;
  }
  Item& operator[](uint32_t number) noexcept { return index_.items()[number]; }
  const Item& operator[](uint32_t number) const noexcept { return index_.items()[number]; }
  uint32_t count() const noexcept {
    return static_cast<uint32_t>(index_.items().count(std::memory_order_acquire));
  }
  // One thread at a time. Otherwise there is room for one more.
  bool is_full() noexcept { return index_.items().back(size_t{count()} + 2) < size_t{count()} + 2; }

  // Forgets all items. In a fork handler too.
  void clear() noexcept {
    index_.clear();
    index_.items().set_count(0);
  }

  // What an item takes, with its place in the index.
  static constexpr uint64_t kItemBytes = sizeof(Item) + sizeof(uint32_t);

 private:
  LinearHash<Item> index_;
};

}  // namespace pytracer
