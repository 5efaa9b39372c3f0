// The addresses of a device. The lowest free range that is large enough is given out.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <stdexcept>

#include "simulator/rules.h"

namespace pytracer::simulator {

class Addresses {
 public:
  uint64_t take(uint64_t bytes) {
    bytes = whole(bytes);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < bytes) continue;
      const uint64_t start = range->first, left = range->second - bytes;
      free_.erase(range);
      if (left != 0) free_[start + bytes] = left;
      return start;
    }
    if (bytes > kEnd - end_) throw too_many();
    end_ += bytes;
    return end_ - bytes;
  }

  // Takes a range that begins at `start`, or, if that is taken, behind all ranges.
  uint64_t take_at(uint64_t start, uint64_t bytes) {
    if (start > end_) {
      free_[end_] = start - end_;
      end_ = start;
    }
    bytes = whole(bytes);
    if (bytes > kEnd - end_) throw too_many();
    end_ += bytes;
    return end_ - bytes;
  }

  void give_back(uint64_t start, uint64_t bytes) {
    bytes = whole(bytes);
    auto next = free_.lower_bound(start);
    if (next != free_.end() && start + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second == start) {
        start = previous->first;
        bytes += previous->second;
        free_.erase(previous);
      }
    }
    if (start + bytes == end_) {
      end_ = start;
    } else {
      free_[start] = bytes;
    }
  }

  static uint64_t whole(uint64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes; }

 private:
  static std::length_error too_many() {
    return std::length_error("the segments of these requests take more than 2**62 addresses");
  }

  static constexpr uint64_t kEnd = uint64_t{1} << 62;
  std::map<uint64_t, uint64_t> free_;  // begin to size
  uint64_t end_ = kUnitBytes;
};

}  // namespace pytracer::simulator
