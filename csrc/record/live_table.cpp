#include "record/live_table.h"

#include <mutex>

namespace pytracer {

LiveTable::LiveTable(uint32_t capacity, const BoxPart& part)
    : capacity_(capacity), entries_(capacity, part), aside_(capacity) {}

bool LiveTable::has_room() noexcept {
  limit_ = static_cast<uint32_t>(entries_.items().back(size_t{used()} + 2));
  return used() + 1 < limit_;
}

void LiveTable::freeze() noexcept {
  ++epoch_;
  frozen_used_ = used();
  frozen_ = true;
}

std::vector<LiveBlock> LiveTable::collect(SpinLock& writer_lock) const {
  constexpr uint32_t kBurst = 1024;  // a few microseconds: what a writer waits at most
  std::vector<LiveBlock> live;
  live.reserve(blocks() + kBurst);
  for (uint32_t begin = 1; begin <= frozen_used_; begin += kBurst) {
    const uint32_t end = std::min(frozen_used_, begin + kBurst - 1);
    live.reserve(std::max(live.capacity(), live.size() + kBurst));
    std::lock_guard lock(writer_lock);
    for (uint32_t entry = begin; entry <= end; ++entry) {
      const LiveBlock& block = entries_.items()[entry];
      if (block.state != kUnused && block.epoch != epoch_) live.push_back(block);
    }
  }
  std::sort(live.begin(), live.end(), [](const LiveBlock& a, const LiveBlock& b) { return a.address < b.address; });
  return live;
}

void LiveTable::thaw(SpinLock& writer_lock) noexcept {
  constexpr uint32_t kBurst = 256;
  while (frozen_) {
    std::lock_guard lock(writer_lock);
    for (uint32_t i = 0; i < kBurst && aside_count_ > 0; ++i) {
      const uint32_t entry = aside_[--aside_count_];
      entries_.erase(entry);
      release(entry);
    }
    frozen_ = aside_count_ != 0;
  }
}
}  // namespace pytracer
