// The blocks of one device that are alive, with what their allocation event said. They keep it
// after that event has left the ring.
//
// 1. One writer at a time: insert(), find(), remove() and freeze() run under the device's writer
//    lock.
// 2. freeze() fixes the table's content for one reader, in O(1), at the instant of a snapshot's
//    marker. From then until thaw(), entries that go are kept aside, and writers and the reader
//    exclude each other by a lock that writers do not touch otherwise.
// 3. Bounded: at most `capacity` blocks. A block that finds no place is not entered; insert() says
//    so and the caller counts it.
// 4. Memory is committed as blocks are entered: 44 bytes a block, 48 once it went while frozen.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "linear_hash.h"
#include "reserved_array.h"
#include "spin_lock.h"

namespace pytracer {

struct LiveBlock {
  uint64_t address;
  uint64_t size;
  int64_t ticks;   // of the allocation, as all that follows
  uint32_t stack;
  uint16_t phase;
  uint16_t state;  // LiveTable's own, as all that follows
  uint32_t next;   // chain link
  uint32_t epoch;  // how many freezes there had been
};

class LiveTable {
 public:
  explicit LiveTable(uint32_t capacity);

  // Writer. No entry has this address (remove() it first). False: full.
  bool insert(const LiveBlock& block) noexcept;
  // Writer. The entry with this address, or false.
  bool find(uint64_t address, LiveBlock* found) const noexcept;
  // Writer. The same, and takes it out.
  bool remove(uint64_t address, LiveBlock* found) noexcept;

  // Writer (in the marker). One freeze at a time.
  void freeze() noexcept;
  // The reader that caused freeze(), writer lock not held. The blocks alive at freeze(), ordered
  // by address.
  std::vector<LiveBlock> collect() const;
  // The same reader, once, after freeze().
  void thaw() noexcept;

  // Any thread; momentary values.
  uint32_t blocks() const noexcept { return blocks_.load(std::memory_order_relaxed); }
  uint64_t block_bytes() const noexcept { return block_bytes_.load(std::memory_order_relaxed); }
  uint64_t committed_bytes() const noexcept;
  uint64_t max_bytes() const noexcept;

 private:
  enum State : uint16_t { kFree, kLive, kDead /* went after freeze() */ };
  struct Entries {
    explicit Entries(uint32_t capacity) : blocks(size_t{capacity} + 1) {}
    uint64_t hash(uint32_t entry) const noexcept { return hash_of(blocks[entry].address); }
    uint32_t& next(uint32_t entry) noexcept { return blocks[entry].next; }
    static uint64_t hash_of(uint64_t address) noexcept;
    ReservedArray<LiveBlock> blocks;  // [0] unused
  };
  class WhileFrozen;  // takes frozen_lock_ if the table is frozen

  uint32_t find_entry(uint64_t address) const noexcept;
  void take_out(uint32_t entry) noexcept;
  void release(uint32_t entry) noexcept;
  void count(int32_t blocks, int64_t bytes) noexcept;

  const uint32_t capacity_;
  Entries entries_;
  LinearHash<Entries> index_;
  ReservedArray<uint32_t> aside_;  // entries that went after freeze()
  uint32_t aside_count_ = 0;
  uint32_t free_list_ = 0;         // through next
  std::atomic<uint32_t> used_{0};  // entries ever used: 1 .. used_
  uint32_t frozen_used_ = 0;  // used_ at freeze()
  uint32_t epoch_ = 0;        // counts freezes; while frozen, entries of this epoch are younger
  std::atomic<uint32_t> blocks_{0};
  std::atomic<uint64_t> block_bytes_{0};
  std::atomic<bool> frozen_{false};
  mutable SpinLock frozen_lock_;
};

}  // namespace pytracer
