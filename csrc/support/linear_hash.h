// An array of numbered items with a chained hash index that grows one bucket at a time (linear hashing).
//
// 1. Item has `uint64_t hash() const` and `uint32_t next`, its chain link; the index takes 4 bytes a
//    bucket.
// 2. No operation rehashes everything: an insertion splits at most one bucket, so the longest
//    insertion is as short as the average one (a hook runs under the allocator's lock).
// 3. Item 0 does not exist: 0 ends a chain.
// 4. One writer at a time: the user's lock. find() may run on any thread meanwhile. It then may miss an
//    item that is being moved to another bucket, and sees all of an item that it finds.
#pragma once

#include <cstdint>

#include "support/reserved_array.h"

namespace pytracer {

template <class Item>
class LinearHash {
 public:
  // For items 1 to `most`. Throws Error.
  LinearHash(uint32_t most, const BoxPart& part) : items_(size_t{most} + 1, part), heads_(most) {}

  ReservedArray<Item>& items() noexcept { return items_; }
  const ReservedArray<Item>& items() const noexcept { return items_; }

  // The first item in the hash's bucket for which `matches(item)`; 0 if there is none.
  template <class Matches>
  uint32_t find(uint64_t hash, Matches matches) const noexcept {
    return find_in(load(bucket(hash)), matches);
  }
  void insert(uint32_t item) noexcept { insert_in(bucket(items_[item].hash()), item); }

  // The same in two steps, for a user who looks before it inserts: the bucket of a hash, until the
  // next insertion, and what is done in it.
  uint32_t& bucket(uint64_t hash) const noexcept { return heads_[bucket_of(hash)]; }
  template <class Matches>
  uint32_t find_in(uint32_t bucket, Matches matches) const noexcept {
    while (bucket != 0 && !matches(bucket)) bucket = load(items_[bucket].next);
    return bucket;
  }
  void insert_in(uint32_t& bucket, uint32_t item) noexcept {
    push(bucket, item);
    store(size_, size_ + 1);
    if (size_ > buckets_ && buckets_ < heads_.capacity()) split_one();
  }

  // Unlinks `item`, which must be in the index.
  void erase(uint32_t item) noexcept {
    erase_at(link_of(items_[item].hash(), [item](uint32_t candidate) { return candidate == item; }));
  }
  // The same in two steps, for a user who looks before it erases: the link to the first item for which
  // `matches(item)`, or to 0, until the next change.
  template <class Matches>
  uint32_t& link_of(uint64_t hash, Matches matches) noexcept {
    uint32_t* link = &bucket(hash);
    while (*link != 0 && !matches(*link)) link = &items_[*link].next;
    return *link;
  }
  void erase_at(uint32_t& link) noexcept {
    link = items_[link].next;
    store(size_, size_ - 1);
  }

  // Forgets all items. In a fork handler too.
  void clear() noexcept {
    heads_.clear();
    buckets_ = 1;
    mask_ = size_ = 0;
  }

  uint32_t size() const noexcept { return load(size_); }  // any thread; a momentary value
  uint64_t bytes() const noexcept { return uint64_t{buckets_} * sizeof(uint32_t); }

 private:
  // By builtins, because users have plain numbers in their items.
  static uint32_t load(const uint32_t& from) noexcept {
    return __atomic_load_n(&from, __ATOMIC_ACQUIRE);
  }
  static void store(uint32_t& to, uint32_t value) noexcept {
    __atomic_store_n(&to, value, __ATOMIC_RELEASE);
  }
  uint32_t bucket_of(uint64_t hash) const noexcept {
    const uint32_t mask = load(mask_);
    const uint32_t bucket = static_cast<uint32_t>(hash) & mask;
    return bucket < load(buckets_) ? bucket : bucket & (mask >> 1);
  }
  void push(uint32_t& head, uint32_t item) noexcept {
    store(items_[item].next, head);
    store(head, item);
  }
  __attribute__((noinline, cold)) void split_one() noexcept {
    if (buckets_ > mask_) store(mask_, mask_ * 2 + 1);
    const uint32_t created = buckets_;
    store(buckets_, created + 1);
    uint32_t& source = heads_[created & (mask_ >> 1)];
    uint32_t item = source;
    store(source, 0);
    while (item != 0) {
      const uint32_t following = items_[item].next;
      const bool moves = (static_cast<uint32_t>(items_[item].hash()) & mask_) == created;
      push(moves ? heads_[created] : source, item);
      item = following;
    }
  }

  ReservedArray<Item> items_;
  mutable ReservedArray<uint32_t> heads_;
  uint32_t buckets_ = 1;
  uint32_t mask_ = 0;  // smallest 2^k - 1 that covers all buckets
  uint32_t size_ = 0;
};

// Items of one kind, each stored once: an item's number, from 1 on, is its place in an array.
//
// 1. Item has `uint64_t hash() const` and `uint32_t next`, which belongs to the interner. The hash of
//    an item that nobody looks for any more may change.
// 2. One writer at a time. find() may run on any thread meanwhile: it then may miss an item, but
//    never finds another one. What `matches` reads, and add() does not write, is the user's concern.
// 3. Items keep their numbers and places. Item 0 is all zeroes, and stands for "none".
// 4. In a box, the array's count is the items' count.
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
