// The live blocks (or segments) of one device. Each keeps the stack of its allocation after the
// allocation's event has been overwritten in the ring.
//
// 1. One writer at a time: insert(), find(), take() and freeze() run under the device's writer
//    lock.
// 2. freeze() fixes the table's content for one reader, in O(1), at the instant of a snapshot's
//    marker. Until thaw(), removed entries are kept aside, while the reader copies under the writer
//    lock a part at a time. Without freeze() the marker would have to copy up to a million blocks
//    under the allocator's lock, while all other threads wait for it.
// 3. Bounded: at most `capacity` blocks. insert() refuses a block that finds no place, and the
//    caller counts it.
// 4. Memory is committed as blocks are entered: 36 bytes a block, 40 if it was removed while frozen.
// 5. In a box, the array's count is the number of entries that were ever used. Those of kLive are alive.
// More than 150 lines: the writer's methods are inlined into the hot path.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "support/linear_hash.h"
#include "support/mix.h"
#include "support/reserved_array.h"
#include "support/spin_lock.h"

namespace pytracer {

struct LiveBlock {
  uint64_t hash() const noexcept { return mix(address); }
  uint64_t address;
  uint64_t size;
  uint32_t stack;  // of the allocation
  uint8_t role;    // a TensorRole that it keeps; 0: none
  uint8_t state;   // LiveTable's own, as all that follows
  uint32_t next;   // chain link
  uint32_t epoch;  // the number of freezes and marks before it was entered
};

class LiveTable {
 public:
  enum State : uint8_t { kUnused, kLive, kRemoved /* after freeze() */ };
  explicit LiveTable(uint32_t capacity, const BoxPart& part = {});

  // Writer. Enters a block, unless the table is full or has a block with this address, which is then
  // returned, until the writer's next change.
  struct Inserted {
    bool done;
    const LiveBlock* block;  // the block that is in the way, or null
  };
  Inserted insert(uint64_t address, uint64_t size, uint32_t stack) noexcept;
  // Writer. The entry with this address, until the writer's next change, or null.
  const LiveBlock* find(uint64_t address) const noexcept {
    const uint32_t entry = entries_.find(mix(address), [&](uint32_t candidate) {
      return is_live(candidate, address);
    });
    return entry == 0 ? nullptr : &entries_.items()[entry];
  }
  // Writer. Gives what find() returned a role, or 0.
  void set_role(const LiveBlock& found, uint8_t role) noexcept {
    entries_.items()[&found - &entries_.items()[0]].role = role;
  }
  // Writer. Removes the entry with this address. Returns it, readable until the next insert(), or null.
  const LiveBlock* take(uint64_t address) noexcept;

  // Writer. The last 16 bits of an entry's epoch; 0: there were 2^15 younger epochs or more, or the entry's
  // is a multiple of 2^16. A reader that knows some later epoch thus knows the entry's.
  uint16_t birth(const LiveBlock& entry) const noexcept {
    return epoch_ - entry.epoch < 1u << 15 ? static_cast<uint16_t>(entry.epoch) : uint16_t{0};
  }

  // Writer. Replaces the stacks of the entries from `entry` on, at most `most`, by what `renewed` makes
  // of them. `entry` becomes the entry that follows; 0: there are no more.
  template <class Renewed>
  void renew_stacks(uint32_t& entry, uint32_t most, const Renewed& renewed) noexcept;

  // Writer (in the marker). One freeze at a time.
  void freeze() noexcept;
  // The reader that caused freeze(), without the writer lock, which is taken for a burst at a time.
  // Returns the blocks that were alive at freeze(), ordered by address.
  std::vector<LiveBlock> collect(SpinLock& writer_lock) const;
  // The same reader, once, after freeze().
  void thaw(SpinLock& writer_lock) noexcept;

  // Control thread, under the writer lock, while the table is not frozen. Returns an epoch: the
  // blocks of smaller epochs, and no others, were entered before this call.
  uint32_t mark() noexcept { return ++epoch_; }
  // The table that takes this one's place; its blocks get larger epochs than this one's.
  void follow(const LiveTable& replaced) noexcept { epoch_ = replaced.epoch_ + 1; }

  // Any thread; momentary values.
  uint32_t blocks() const noexcept {
    return entries_.size() - aside_count_.load(std::memory_order_relaxed);
  }
  uint64_t block_bytes() const noexcept { return block_bytes_.load(std::memory_order_relaxed); }
  uint64_t committed_bytes() const noexcept {
    return uint64_t{used()} * (sizeof(LiveBlock) + sizeof(uint32_t));
  }
  uint64_t max_bytes() const noexcept {
    return uint64_t{capacity_} * (sizeof(LiveBlock) + 2 * sizeof(uint32_t));
  }

 private:
  bool is_live(uint32_t entry, uint64_t address) const noexcept {
    const LiveBlock& block = entries_.items()[entry];
    return block.address == address && block.state == kLive;
  }
  // Entries ever used: from 1 on, up to this one.
  uint32_t used() const noexcept { return static_cast<uint32_t>(entries_.items().count()); }
  __attribute__((noinline, cold)) bool has_room() noexcept;  // for one more than were ever used
  void release(uint32_t entry) noexcept;  // it is in no chain any more
  // In the order of the program: in the box of a process that was killed meanwhile, a live entry is complete.
  static void set_state(LiveBlock& block, State state) noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    block.state = state;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void count(int64_t bytes) noexcept {
    // One writer: no read-modify-write instruction needed.
    block_bytes_.store(block_bytes_.load(std::memory_order_relaxed) + static_cast<uint64_t>(bytes),
                       std::memory_order_relaxed);
  }

  const uint32_t capacity_;
  LinearHash<LiveBlock> entries_;
  ReservedArray<uint32_t> aside_;  // entries that were removed after freeze()
  std::atomic<uint32_t> aside_count_{0};
  uint32_t free_list_ = 0;         // through next
  uint32_t limit_ = 0;        // entries that are backed
  uint32_t frozen_used_ = 0;  // used() at freeze()
  uint32_t epoch_ = 0;        // freezes and marks; while frozen, entries of this epoch are younger
  std::atomic<uint64_t> block_bytes_{0};
  bool frozen_ = false;
};

// Of every allocation and every free: inline.

inline LiveTable::Inserted LiveTable::insert(uint64_t address, uint64_t size,
                                             uint32_t stack) noexcept {
  uint32_t& bucket = entries_.bucket(mix(address));
  const uint32_t taken = entries_.find_in(
      bucket, [&](uint32_t candidate) { return is_live(candidate, address); });
  if (taken != 0) return {false, &entries_.items()[taken]};
  uint32_t entry = free_list_;
  if (entry != 0) {
    free_list_ = entries_.items()[entry].next;
  } else if (const uint32_t used = this->used(); used + 1 < limit_ || has_room()) {
    entry = used + 1;
    entries_.items().set_count(entry);
  } else {
    return {false, nullptr};
  }
  LiveBlock& block = entries_.items()[entry];
  block.address = address;
  block.size = size;
  block.stack = stack;
  block.role = 0;
  block.epoch = epoch_;
  set_state(block, kLive);
  entries_.insert_in(bucket, entry);
  count(static_cast<int64_t>(size));
  return {true, nullptr};
}

inline const LiveBlock* LiveTable::take(uint64_t address) noexcept {
  uint32_t& link = entries_.link_of(mix(address), [&](uint32_t candidate) {
    return is_live(candidate, address);
  });
  if (link == 0) return nullptr;
  const uint32_t entry = link;
  LiveBlock& block = entries_.items()[entry];
  count(-static_cast<int64_t>(block.size));
  // The reader still needs an entry that is older than freeze().
  if (frozen_ && block.epoch != epoch_) {
    set_state(block, kRemoved);
    aside_[aside_count_++] = entry;
  } else {
    entries_.erase_at(link);
    release(entry);
  }
  return &block;
}

inline void LiveTable::release(uint32_t entry) noexcept {
  set_state(entries_.items()[entry], kUnused);
  entries_.items()[entry].next = free_list_;
  free_list_ = entry;
}

template <class Renewed>
void LiveTable::renew_stacks(uint32_t& entry, uint32_t most, const Renewed& renewed) noexcept {
  const uint32_t used = this->used();
  const uint32_t stop = std::min(used, entry + most - 1);
  for (; entry <= stop; ++entry) {
    LiveBlock& block = entries_.items()[entry];
    if (block.state != kUnused) block.stack = renewed(block.stack);
  }
  if (entry > used) entry = 0;
}

}  // namespace pytracer
