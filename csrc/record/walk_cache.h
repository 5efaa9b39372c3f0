// A map from walks' keys to their stacks' ids that is read without a lock.
//
// 1. find() may run on any thread at any time, insert() and reserve() one at a time (the caller's
//    mutex).
// 2. A reader never gets the id of another key: each entry carries a version that is odd while it
//    is written.
// 3. An entry may be replaced at any time: a miss is never wrong, only slow.
// 4. The cache doubles when it is half full. Old arrays are kept, because readers may be in them;
//    together they are smaller than the newest one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "frames/walk_key.h"
#include "support/reserved_array.h"

namespace pytracer {

class WalkCache {
 public:
  uint32_t find(const WalkKey& key) const noexcept {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) return 0;
    const Entry* set = table->set_of(key);
    for (int way = 0; way < kWays; ++way) {
      const Entry& entry = set[way];
      const uint32_t version = entry.version.load(std::memory_order_acquire);
      if (entry.a.load(std::memory_order_acquire) != key.a ||
          entry.b.load(std::memory_order_acquire) != key.b) {
        continue;
      }
      const uint32_t id = entry.id.load(std::memory_order_acquire);
      const bool consistent = entry.version.load(std::memory_order_relaxed) == version;
      if (consistent && (version & 1) == 0) return id;
    }
    return 0;
  }

  void insert(const WalkKey& key, uint32_t id) noexcept {
    Table* table = table_.load(std::memory_order_relaxed);
    if (table == nullptr) return;
    Entry* set = table->set_of(key);
    int way = 0;
    while (way < kWays && set[way].id.load(std::memory_order_relaxed) != 0) ++way;
    if (way == kWays) way = static_cast<int>(victim_++ % kWays);
    Entry& entry = set[way];
    const uint32_t version = entry.version.load(std::memory_order_relaxed);
    entry.version.store(version + 1, std::memory_order_relaxed);
    entry.a.store(key.a, std::memory_order_release);
    entry.b.store(key.b, std::memory_order_release);
    entry.id.store(id, std::memory_order_release);
    entry.version.store(version + 2, std::memory_order_release);
  }

  // The number of bytes that reserve(entries) takes, if memory allows.
  uint64_t growth(uint64_t entries) const noexcept {
    const uint64_t sets = sets_for(entries);
    return sets != 0 ? sets * kWays * sizeof(Entry) : 0;
  }

  // Makes room for `entries`, if memory allows. When the cache grows, its entries are forgotten.
  // Returns the number of bytes that this took.
  uint64_t reserve(uint64_t entries) noexcept {
    const uint64_t sets = sets_for(entries);
    if (sets == 0) return 0;
    std::unique_ptr<Table> grown(new (std::nothrow) Table(sets));
    if (grown == nullptr || !grown->entries.has_memory()) return 0;
    grown->older = std::move(newest_);
    newest_ = std::move(grown);
    table_.store(newest_.get(), std::memory_order_release);
    return sets * kWays * sizeof(Entry);
  }

 private:
  static constexpr int kWays = 4;
  static constexpr uint64_t kFirstSets = 128;  // 16 KiB
  struct alignas(32) Entry {  // all zeroes: empty
    std::atomic<uint64_t> a;
    std::atomic<uint64_t> b;
    std::atomic<uint32_t> id;
    std::atomic<uint32_t> version;
  };
  struct Table {
    explicit Table(uint64_t set_count) noexcept
        : entries(set_count * kWays, std::nothrow), sets(set_count) {}
    Entry* set_of(const WalkKey& key) noexcept {
      return &entries[((key.a ^ key.b) & (sets - 1)) * kWays];
    }
    ReservedArray<Entry> entries;  // nothing is touched when the table is made
    const uint64_t sets;           // a power of two
    std::unique_ptr<Table> older;
  };

  // The number of sets that a table for `entries` needs; 0: the newest one is large enough.
  uint64_t sets_for(uint64_t entries) const noexcept {
    uint64_t sets = newest_ != nullptr ? newest_->sets : kFirstSets;
    while (sets * kWays < entries * 2) sets *= 2;
    return newest_ != nullptr && sets == newest_->sets ? 0 : sets;
  }

  std::atomic<Table*> table_{nullptr};
  std::unique_ptr<Table> newest_;  // owns the chain
  uint32_t victim_ = 0;
};

}  // namespace pytracer
