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
#include <cstring>
#include <string_view>

#include "support/linear_hash.h"

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

  // Writer.
  uint32_t intern(std::string_view bytes) noexcept {
    if (bytes.empty()) return 0;
    if (last_ != 0 && at(last_) == bytes) return last_;
    if (const uint32_t known = find(bytes)) return last_ = known;
    const auto used = static_cast<uint32_t>(bytes_.count()), size = static_cast<uint32_t>(bytes.size());
    if (strings_.is_full() || bytes.size() > bytes_.capacity() - used || bytes_.back(used + size) < used + size) {
      dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return 0;
    }
    std::memcpy(&bytes_[used], bytes.data(), size);
    bytes_.set_count(used + size);
    return last_ = strings_.add({hash_of(bytes), 0, used, size});
  }
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
  static uint32_t hash_of(std::string_view bytes) noexcept {
    uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
    for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    return static_cast<uint32_t>(hash ^ (hash >> 32));
  }
  uint32_t find(std::string_view bytes) const noexcept {
    const uint32_t hash = hash_of(bytes);
    return strings_.find(hash, [&](uint32_t number) {
      return strings_[number].hash_of == hash && at(number) == bytes;
    });
  }

  Interner<String> strings_;   // [0]: the empty string
  ReservedArray<char> bytes_;  // of strings one after another; its count: how many
  uint32_t last_ = 0;  // the number that intern() returned last
  std::atomic<uint64_t> dropped_{0};

 public:
  static constexpr uint64_t kStringBytes = Interner<String>::kItemBytes;
};

}  // namespace pytracer
