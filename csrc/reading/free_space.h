// The free memory of a device's segments, as the caching allocator sees it: extents between blocks.
//
// 1. Two extents of a segment never touch. Extents of different segments stay separate, except that
//    all expandable segments count as one.
// 2. The largest extent, the sum of squares and the split bytes are known at any time. Every change
//    takes logarithmic time.
// 3. The caller makes sure that addresses are below 2^62 and sizes above 0.
// 4. One thread. Throws std::bad_alloc.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

namespace pytracer::reading {

__extension__ using uint128 = unsigned __int128;

class FreeSpace {
 public:
  using SegmentId = uint32_t;
  static constexpr SegmentId kExpandable = 0;  // all expandable segments

  struct Extent {
    uint64_t begin;
    uint64_t end;
    SegmentId segment;
  };

  // Add a segment, or mapped memory of an expandable segment; both are free at first. The address
  // range must be unused.
  void add_segment(uint64_t begin, uint64_t end);
  void map(uint64_t begin, uint64_t end);
  // Return false if the range is not completely free, or belongs to another segment.
  bool remove_segment(uint64_t begin, uint64_t end);
  bool unmap(uint64_t begin, uint64_t end);

  // Whether a part of the range is free.
  bool overlaps(uint64_t begin, uint64_t end) const {
    const auto extent = extents_.upper_bound(begin);
    return extent != extents_.end() && extent->second.begin < end;
  }
  // The extent that contains an address.
  std::optional<Extent> at(uint64_t address) const;
  // Takes the range, which must be within one extent.
  void take(uint64_t begin, uint64_t end) { remove(extents_.lower_bound(end), begin, end); }
  void give_back(uint64_t begin, uint64_t end, SegmentId segment) { add(begin, end, segment); }

  uint64_t largest_bytes() const { return counts_.empty() ? 0 : counts_.rbegin()->first; }
  // Free bytes next to blocks, in segments that are not expandable.
  uint64_t split_bytes() const { return split_bytes_; }
  // Of all segments, free or not; and how many do not expand.
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t segments() const { return segments_; }
  double sum_of_squares() const { return static_cast<double>(squares_); }

 private:
  struct Start {
    uint64_t begin;
    SegmentId segment;
  };
  using Extents = std::map<uint64_t, Start>;

  void add(uint64_t begin, uint64_t end, SegmentId segment);
  void remove(Extents::iterator extent, uint64_t begin, uint64_t end);
  void count(uint64_t bytes, SegmentId segment);
  void uncount(uint64_t bytes, SegmentId segment);

  Extents extents_;                      // by end, because extents shrink from their beginning
  std::map<uint64_t, uint32_t> counts_;  // of extents, by size
  std::vector<uint64_t> segment_bytes_{0};
  uint128 squares_ = 0;
  uint64_t split_bytes_ = 0, reserved_bytes_ = 0, segments_ = 0;
};

inline void FreeSpace::add_segment(uint64_t begin, uint64_t end) {
  segment_bytes_.push_back(end - begin);
  reserved_bytes_ += end - begin;
  ++segments_;
  add(begin, end, static_cast<SegmentId>(segment_bytes_.size() - 1));
}

inline void FreeSpace::map(uint64_t begin, uint64_t end) {
  reserved_bytes_ += end - begin;
  add(begin, end, kExpandable);
}

inline bool FreeSpace::remove_segment(uint64_t begin, uint64_t end) {
  const auto extent = extents_.find(end);
  if (extent == extents_.end() || extent->second.begin != begin ||
      extent->second.segment == kExpandable ||
      segment_bytes_[extent->second.segment] != end - begin) {
    return false;
  }
  --segments_;
  reserved_bytes_ -= end - begin;
  remove(extent, begin, end);
  return true;
}

inline bool FreeSpace::unmap(uint64_t begin, uint64_t end) {
  const auto extent = extents_.lower_bound(end);
  if (extent == extents_.end() || extent->second.begin > begin ||
      extent->second.segment != kExpandable) {
    return false;
  }
  reserved_bytes_ -= end - begin;
  remove(extent, begin, end);
  return true;
}

inline std::optional<FreeSpace::Extent> FreeSpace::at(uint64_t address) const {
  const auto extent = extents_.upper_bound(address);
  if (extent == extents_.end() || extent->second.begin > address) return std::nullopt;
  return Extent{extent->second.begin, extent->first, extent->second.segment};
}
inline void FreeSpace::add(uint64_t begin, uint64_t end, SegmentId segment) {
  auto next = extents_.lower_bound(end);
  auto previous = next == extents_.begin() ? extents_.end() : std::prev(next);
  if (previous != extents_.end() && previous->first == begin && previous->second.segment == segment) {
    begin = previous->second.begin;
    uncount(previous->first - begin, segment);
    extents_.erase(previous);
  }
  if (next != extents_.end() && next->second.begin == end && next->second.segment == segment) {
    uncount(next->first - end, segment);
    next->second.begin = begin;
    end = next->first;
  } else {
    extents_.emplace_hint(next, end, Start{begin, segment});
  }
  count(end - begin, segment);
}

inline void FreeSpace::remove(Extents::iterator extent, uint64_t begin, uint64_t end) {
  const auto [before, segment] = extent->second;
  const uint64_t after = extent->first;
  uncount(after - before, segment);
  if (before < begin) {
    extents_.emplace_hint(extent, begin, Start{before, segment});
    count(begin - before, segment);
  }
  if (end < after) {
    extent->second.begin = end;
    count(after - end, segment);
  } else {
    extents_.erase(extent);
  }
}

inline void FreeSpace::count(uint64_t bytes, SegmentId segment) {
  ++counts_[bytes];
  squares_ += static_cast<uint128>(bytes) * bytes;
  if (segment != kExpandable && bytes != segment_bytes_[segment]) split_bytes_ += bytes;
}

inline void FreeSpace::uncount(uint64_t bytes, SegmentId segment) {
  const auto counted = counts_.find(bytes);
  if (--counted->second == 0) counts_.erase(counted);
  squares_ -= static_cast<uint128>(bytes) * bytes;
  if (segment != kExpandable && bytes != segment_bytes_[segment]) split_bytes_ -= bytes;
}

}  // namespace pytracer::reading
