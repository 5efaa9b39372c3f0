// The free memory of a device's segments, as the caching allocator has it: extents between blocks.
//
// 1. Two extents of a segment never touch; those of different segments do not become one, but for
//    pieces of expandable segments, which are one where they touch.
// 2. The largest extent, the sum of the squares and what is split are known at any time. Every
//    change takes logarithmic time.
// 3. Addresses are below 2^62, sizes above 0: whoever calls has seen to that.
// 4. One thread. Throws std::bad_alloc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace pytracer::reading {

__extension__ using uint128 = unsigned __int128;

class FreeSpace {
 public:
  using SegmentId = uint32_t;
  static constexpr SegmentId kExpandable = 0;  // all of these

  struct Extent {
    uint64_t begin;
    uint64_t end;
    SegmentId segment;
  };

  // A segment of its own, or memory that is mapped, free at first. Nothing may be there.
  void add_segment(uint64_t begin, uint64_t end);
  void map(uint64_t begin, uint64_t end) { add(begin, end, kExpandable); }
  // False: it is not all free, or another's.
  bool remove_segment(uint64_t begin, uint64_t end);
  bool unmap(uint64_t begin, uint64_t end);

  // The extent that an address is in.
  std::optional<Extent> at(uint64_t address) const;
  // Takes a part of the extent that it begins in, which must be as long.
  void take(uint64_t begin, uint64_t end);
  void give_back(uint64_t begin, uint64_t end, SegmentId segment) { add(begin, end, segment); }

  uint64_t largest_bytes() const { return counts_.empty() ? 0 : counts_.rbegin()->first; }
  // In segments that are not expandable, beside blocks.
  uint64_t split_bytes() const { return split_bytes_; }
  double sum_of_squares() const { return static_cast<double>(squares_); }

 private:
  struct Start {
    uint64_t begin;
    SegmentId segment;
  };
  using Extents = std::map<uint64_t, Start>;

  void add(uint64_t begin, uint64_t end, SegmentId segment);
  void cut(Extents::iterator extent, uint64_t begin, uint64_t end);
  void count(uint64_t bytes, SegmentId segment);
  void discount(uint64_t bytes, SegmentId segment);

  Extents extents_;                     // by their end: an extent shrinks from its beginning
  std::map<uint64_t, uint32_t> counts_;  // of extents, by their size
  std::vector<uint64_t> segment_bytes_{0};
  uint128 squares_ = 0;
  uint64_t split_bytes_ = 0;
};

}  // namespace pytracer::reading
