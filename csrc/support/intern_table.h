// A table that stores each byte string once and gives it a number.
//
// 1. One writer at a time.
// 2. Numbers are given out from 1 on and keep their meaning. A number from an event may be looked
//    up on any thread, without a lock.
// 3. Bounded: `max_strings`, and `max_bytes` of characters. A string that finds no place gets 0 and is
//    counted.
// 4. Memory is committed as it fills.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "support/interner.h"

namespace pytracer {

class InternTable {
 public:
  explicit InternTable(uint32_t max_bytes, uint32_t max_strings = UINT16_MAX)
      : bytes_(max_bytes), strings_(max_strings) {}

  uint32_t intern(std::string_view bytes) noexcept;  // writer
  std::string_view at(uint32_t number) const noexcept {
    const String& string = strings_[number];
    return {&bytes_[string.begin], string.size};
  }
  // What intern() would take; 0: the string is known.
  uint64_t growth(std::string_view bytes) const noexcept {
    return find(bytes) != 0 ? 0 : bytes.size() + kStringBytes;
  }
  uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct String {
    uint64_t hash() const noexcept { return hash_of; }
    uint32_t hash_of;
    uint32_t next;
    uint32_t begin;
    uint32_t size;
  };

  uint32_t find(std::string_view bytes) const noexcept;

  ReservedArray<char> bytes_;
  Interner<String> strings_;  // [0]: the empty string
  uint32_t used_bytes_ = 0;
  uint32_t last_ = 0;  // the number that intern() returned last
  std::atomic<uint64_t> dropped_{0};

 public:
  static constexpr uint64_t kStringBytes = Interner<String>::kItemBytes;
};

}  // namespace pytracer
