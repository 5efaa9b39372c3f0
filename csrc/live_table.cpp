#include "live_table.h"

#include <algorithm>

namespace pytracer {

// Entered only by writers. The writer sees frozen_ become true in its own critical section (the
// marker runs under the writer lock); it turns false under frozen_lock_.
class LiveTable::WhileFrozen {
 public:
  explicit WhileFrozen(LiveTable& table) noexcept
      : lock_(table.frozen_.load(std::memory_order_acquire) ? &table.frozen_lock_ : nullptr) {
    if (lock_ != nullptr) lock_->lock();
  }
  ~WhileFrozen() {
    if (lock_ != nullptr) lock_->unlock();
  }
  WhileFrozen(const WhileFrozen&) = delete;
  WhileFrozen& operator=(const WhileFrozen&) = delete;

 private:
  SpinLock* lock_;
};

LiveTable::LiveTable(uint32_t capacity)
    : capacity_(capacity), entries_(capacity), index_(entries_, capacity), aside_(capacity) {}

uint64_t LiveTable::Entries::hash_of(uint64_t address) noexcept {
  const uint64_t mixed = address * 0x9e3779b97f4a7c15ull;
  return mixed ^ (mixed >> 32);
}

uint32_t LiveTable::find_entry(uint64_t address) const noexcept {
  return index_.find(Entries::hash_of(address), [&](uint32_t entry) {
    const LiveBlock& block = entries_.blocks[entry];
    return block.address == address && block.state == kLive;
  });
}

void LiveTable::count(int32_t blocks, int64_t bytes) noexcept {
  // One writer: no read-modify-write instruction needed.
  blocks_.store(blocks_.load(std::memory_order_relaxed) + static_cast<uint32_t>(blocks),
                std::memory_order_relaxed);
  block_bytes_.store(block_bytes_.load(std::memory_order_relaxed) + static_cast<uint64_t>(bytes),
                     std::memory_order_relaxed);
}

bool LiveTable::insert(const LiveBlock& block) noexcept {
  WhileFrozen guard(*this);
  uint32_t entry = free_list_;
  if (entry != 0) {
    free_list_ = entries_.blocks[entry].next;
  } else if (const uint32_t used = used_.load(std::memory_order_relaxed); used < capacity_) {
    entry = used + 1;
    used_.store(entry, std::memory_order_relaxed);
  } else {
    return false;
  }
  entries_.blocks[entry] = block;
  entries_.blocks[entry].state = kLive;
  entries_.blocks[entry].epoch = epoch_;
  index_.insert(entry);
  count(1, static_cast<int64_t>(block.size));
  return true;
}

bool LiveTable::find(uint64_t address, LiveBlock* found) const noexcept {
  // Readers never change a chain while frozen; only thaw() does, so the lock is needed here too.
  WhileFrozen guard(const_cast<LiveTable&>(*this));
  const uint32_t entry = find_entry(address);
  if (entry == 0) return false;
  *found = entries_.blocks[entry];
  return true;
}

bool LiveTable::remove(uint64_t address, LiveBlock* found) noexcept {
  WhileFrozen guard(*this);
  const uint32_t entry = find_entry(address);
  if (entry == 0) return false;
  *found = entries_.blocks[entry];
  take_out(entry);
  return true;
}

void LiveTable::take_out(uint32_t entry) noexcept {
  LiveBlock& block = entries_.blocks[entry];
  count(-1, -static_cast<int64_t>(block.size));
  // An entry of before freeze() stays where it is for the reader.
  if (frozen_.load(std::memory_order_relaxed) && block.epoch != epoch_) {
    block.state = kDead;
    aside_[aside_count_++] = entry;
  } else {
    release(entry);
  }
}

void LiveTable::release(uint32_t entry) noexcept {
  index_.erase(entry);
  entries_.blocks[entry].state = kFree;
  entries_.blocks[entry].next = free_list_;
  free_list_ = entry;
}

void LiveTable::freeze() noexcept {
  ++epoch_;
  frozen_used_ = used_.load(std::memory_order_relaxed);
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
    for (uint32_t i = 0; i < kBurst && aside_count_ > 0; ++i) release(aside_[--aside_count_]);
    done = aside_count_ == 0;
    if (done) frozen_.store(false, std::memory_order_release);
    frozen_lock_.unlock();
  }
}

uint64_t LiveTable::committed_bytes() const noexcept {
  return uint64_t{used_.load(std::memory_order_relaxed)} * (sizeof(LiveBlock) + sizeof(uint32_t));
}

uint64_t LiveTable::max_bytes() const noexcept {
  return uint64_t{capacity_} * (sizeof(LiveBlock) + 2 * sizeof(uint32_t));
}

}  // namespace pytracer
