#include "free_space.h"

#include <iterator>

namespace pytracer::reading {

void FreeSpace::add_segment(uint64_t begin, uint64_t end) {
  segment_bytes_.push_back(end - begin);
  reserved_bytes_ += end - begin;
  ++segments_;
  add(begin, end, static_cast<SegmentId>(segment_bytes_.size() - 1));
}

void FreeSpace::map(uint64_t begin, uint64_t end) {
  reserved_bytes_ += end - begin;
  add(begin, end, kExpandable);
}

bool FreeSpace::remove_segment(uint64_t begin, uint64_t end) {
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

bool FreeSpace::unmap(uint64_t begin, uint64_t end) {
  const auto extent = extents_.lower_bound(end);
  if (extent == extents_.end() || extent->second.begin > begin ||
      extent->second.segment != kExpandable) {
    return false;
  }
  reserved_bytes_ -= end - begin;
  remove(extent, begin, end);
  return true;
}

std::optional<FreeSpace::Extent> FreeSpace::at(uint64_t address) const {
  const auto extent = extents_.upper_bound(address);
  if (extent == extents_.end() || extent->second.begin > address) return std::nullopt;
  return Extent{extent->second.begin, extent->first, extent->second.segment};
}
void FreeSpace::add(uint64_t begin, uint64_t end, SegmentId segment) {
  auto next = extents_.lower_bound(end);
  auto previous = next == extents_.begin() ? extents_.end() : std::prev(next);
  if (previous != extents_.end() && previous->first == begin &&
      previous->second.segment == segment) {
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

void FreeSpace::remove(Extents::iterator extent, uint64_t begin, uint64_t end) {
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

void FreeSpace::count(uint64_t bytes, SegmentId segment) {
  ++counts_[bytes];
  squares_ += static_cast<uint128>(bytes) * bytes;
  if (segment != kExpandable && bytes != segment_bytes_[segment]) split_bytes_ += bytes;
}

void FreeSpace::uncount(uint64_t bytes, SegmentId segment) {
  const auto counted = counts_.find(bytes);
  if (--counted->second == 0) counts_.erase(counted);
  squares_ -= static_cast<uint128>(bytes) * bytes;
  if (segment != kExpandable && bytes != segment_bytes_[segment]) split_bytes_ -= bytes;
}

}  // namespace pytracer::reading
