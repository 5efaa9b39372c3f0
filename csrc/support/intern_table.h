// A table that stores each byte string once and gives it a 16-bit number.
//
// 1. One writer at a time.
// 2. Numbers are given out from 1 on and keep their meaning. A number from an event may be looked
//    up on any thread, without a lock.
// 3. Bounded: 65,535 strings and `max_bytes`. A string that finds no place gets 0 and is counted.
// 4. Memory is committed as it fills.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "support/linear_hash.h"
#include "support/reserved_array.h"

namespace pytracer {

class InternTable {
 public:
  explicit InternTable(uint32_t max_bytes);

  uint16_t intern(std::string_view bytes) noexcept;  // writer
  std::string_view at(uint16_t number) const noexcept {
    const Entry& entry = entries_.all[number];
    return {&bytes_[entry.begin], entry.size};
  }
  uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kMaxEntries = UINT16_MAX;
  struct Entry {
    uint32_t hash;
    uint32_t next;
    uint32_t begin;
    uint32_t size;
  };
  struct Entries {
    uint64_t hash(uint32_t entry) const noexcept { return all[entry].hash; }
    uint32_t& next(uint32_t entry) noexcept { return all[entry].next; }
    ReservedArray<Entry> all{size_t{kMaxEntries} + 1};  // [0]: the empty string
  };

  Entries entries_;
  LinearHash<Entries> index_{entries_, kMaxEntries};
  ReservedArray<char> bytes_;
  uint32_t used_ = 0;        // entries: 1 .. used_
  uint32_t used_bytes_ = 0;
  uint16_t last_ = 0;        // the number that intern() returned last
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace pytracer
