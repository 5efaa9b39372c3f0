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
  struct String {
    uint64_t hash() const noexcept { return hash_of; }
    uint32_t hash_of;
    uint32_t next;
    uint32_t begin;
    uint32_t size;
  };

  explicit InternTable(uint32_t max_bytes, uint32_t max_strings = UINT16_MAX, BoxPart part = {})
      : strings_(max_strings, part), bytes_(max_bytes, (part.array = 1, part)) {}

  uint32_t intern(std::string_view bytes) noexcept;  // writer
  std::string_view at(uint32_t number) const noexcept {
    const String& string = strings_[number];
    return {&bytes_[string.begin], string.size};
  }
  // What intern() would take; 0: the string is known, or empty.
  uint64_t growth(std::string_view bytes) const noexcept {
    return bytes.empty() || find(bytes) != 0 ? 0 : bytes.size() + kStringBytes;
  }
  uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  uint32_t find(std::string_view bytes) const noexcept;

  Interner<String> strings_;   // [0]: the empty string
  ReservedArray<char> bytes_;  // of strings one after another; its count: how many
  uint32_t last_ = 0;  // the number that intern() returned last
  std::atomic<uint64_t> dropped_{0};

 public:
  static constexpr uint64_t kStringBytes = Interner<String>::kItemBytes;
};

}  // namespace pytracer
