#include "record/live_table.h"

#include <algorithm>

namespace pytracer {

LiveTable::LiveTable(uint32_t capacity, const BoxPart& part)
    : capacity_(capacity), entries_(capacity, part), index_(entries_, capacity), aside_(capacity) {}

bool LiveTable::has_room() noexcept {
  limit_ = static_cast<uint32_t>(entries_.blocks.back(size_t{used()} + 2));
  return used() + 1 < limit_;
}

void LiveTable::freeze() noexcept {
  ++epoch_;
  frozen_used_ = used();
  frozen_.store(true, std::memory_order_release);
}

std::vector<LiveBlock> LiveTable::collect() const {
  constexpr uint32_t kBurst = 1024;  // a few microseconds: what a writer waits at most
  std::vector<LiveBlock> live;
  live.reserve(blocks() + kBurst);
  for (uint32_t begin = 1; begin <= frozen_used_; begin += kBurst) {
    const uint32_t end = std::min(frozen_used_, begin + kBurst - 1);
    live.reserve(std::max(live.capacity(), live.size() + kBurst));
    frozen_lock_.lock();
    for (uint32_t entry = begin; entry <= end; ++entry) {
      const LiveBlock& block = entries_.blocks[entry];
      if (block.state != kFree && block.epoch != epoch_) live.push_back(block);
    }
    frozen_lock_.unlock();
  }
  std::sort(live.begin(), live.end(),
            [](const LiveBlock& a, const LiveBlock& b) { return a.address < b.address; });
  return live;
}

void LiveTable::thaw() noexcept {
  constexpr uint32_t kBurst = 256;
  for (bool done = false; !done;) {
    frozen_lock_.lock();
    for (uint32_t i = 0; i < kBurst && aside_count_ > 0; ++i) {
      const uint32_t entry = aside_[--aside_count_];
      index_.erase(entry);
      release(entry);
    }
    done = aside_count_ == 0;
    if (done) frozen_.store(false, std::memory_order_release);
    frozen_lock_.unlock();
  }
}

uint64_t LiveTable::committed_bytes() const noexcept {
  return uint64_t{used()} * (sizeof(LiveBlock) + sizeof(uint32_t));
}

uint64_t LiveTable::max_bytes() const noexcept {
  return uint64_t{capacity_} * (sizeof(LiveBlock) + 2 * sizeof(uint32_t));
}

}  // namespace pytracer
