#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace simulated {

// The free addresses of a range. The lowest are given out first, and neighbours are merged. The
// caller holds a lock.
class Addresses {
 public:
  Addresses(uintptr_t start, size_t bytes) { free_[start] = bytes; }

  bool take(size_t bytes, uintptr_t* start) {
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < bytes) continue;
      *start = range->first;
      const size_t left = range->second - bytes;
      free_.erase(range);
      if (left != 0) free_[*start + bytes] = left;
      return true;
    }
    return false;
  }

  void give_back(uintptr_t start, size_t bytes) {
    auto next = free_.lower_bound(start);
    if (next != free_.end() && start + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == start) {
        previous->second += bytes;
        return;
      }
    }
    free_[start] = bytes;
  }

 private:
  std::map<uintptr_t, size_t> free_;  // begin to size
};

// Returns the entry of an address-keyed map whose range contains the address, or end().
template <typename Map, typename Size>
typename Map::iterator entry_around(Map& map, uintptr_t address, Size size_of) {
  auto after = map.upper_bound(address);
  if (after == map.begin()) return map.end();
  const auto entry = std::prev(after);
  return address < entry->first + size_of(entry->second) ? entry : map.end();
}

}  // namespace simulated
