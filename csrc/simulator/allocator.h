// A caching allocator of one device, without a device.
//
// 1. Each rule is a function, with the condition under which it applies.
// 2. Memory is given out as the device would: addresses are the lowest that are free.
// 3. One thread. Throws std::length_error if there are not enough addresses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "simulator/blocks.h"

namespace pytracer::simulator {

enum class DeviceCall : uint8_t { alloc, free, map, unmap };

// What an allocator needs of its user.
class Host {
 public:
  virtual ~Host() = default;
  // Is called for each call to the device.
  virtual void on_call(DeviceCall call, uint64_t address, uint64_t bytes) = 0;
  // Is called before the cache is given back in order to allocate: frees the blocks that were left.
  virtual void complete_left() = 0;
  // Is called when the device has done its work: the blocks that were left are freed before the next
  // allocation.
  virtual void on_synchronized() = 0;
};

struct Counts {
  uint64_t reserved_bytes = 0, allocated_bytes = 0;
  uint64_t peak_reserved_bytes = 0;
  uint64_t device_allocs = 0, device_frees = 0, maps = 0, unmaps = 0, retries = 0;
};

class Allocator {
 public:
  Allocator(const Rules& rules, Host& host);

  // Takes over the memory of another allocator, before the first request. Sets the blocks in
  // `numbered`, by their numbers in the requests. Throws std::invalid_argument.
  void begin(const Start& start, std::vector<Block*>& numbered);
  // Whether the memory is within the limits, which that of the start may not be.
  bool is_within_limits() const;

  // Returns nullptr if there is not enough memory. Pool 0 is the default pool.
  Block* allocate(uint64_t requested, uint64_t stream, uint64_t pool);
  // Takes a block out of the allocated bytes, which its memory may leave later.
  void leave(Block* block);
  void free(Block* block);
  // Gives the cached segments of the default pool and of released pools back.
  void empty_cache();
  // Gives a private pool up. Its cached memory returns to the device, the rest with empty_cache().
  void release_pool(uint64_t pool);

  const Counts& counts() const { return counts_; }

 private:
  friend class StartBuilder;
  struct PoolPair {
    explicit PoolPair(bool is_private, Tie tie)
        : small(true, is_private, tie), large(false, is_private, tie) {}
    BlockPool small, large;
    bool is_released = false;
  };

  PoolPair& pair_of(uint64_t pool);
  Block* find_free(BlockPool& pool, uint64_t size, uint64_t stream);
  Block* find_memory(BlockPool& pool, uint64_t size, uint64_t stream);
  Block* take_from_device(BlockPool& pool, uint64_t size, uint64_t stream);
  Block* align(Block* block, uint64_t size);
  void split(Block* block, uint64_t size);
  void merge(Block* block, Block* neighbour);
  void link_after(Block* block, Block* prev);
  bool fits_device(uint64_t bytes) const {
    return device_used_ + Addresses::whole(bytes) <= std::min(rules_.device_bytes, kMostBytes);
  }
  void add_reserved(uint64_t bytes);
  void remove_reserved(uint64_t bytes);

  // Expandable segments.
  Block* expand(BlockPool& pool, uint64_t size, uint64_t stream);
  Block* find_room(BlockPool& pool, uint64_t size, uint64_t stream);
  uint64_t page_bytes(const BlockPool& pool) const {
    return pool.is_small ? kSmallSegmentBytes : rules_.large_page_bytes;
  }
  uint64_t range_bytes(const BlockPool& pool) const;
  bool map(Block* block, uint64_t size);
  void unmap(Block* block);

  // Giving memory back.
  void collect();
  bool release_oversize(BlockPool& pool, uint64_t size, uint64_t stream);
  void release_cached(BlockPool& pool);
  void release(Block* block);

  Rules rules_;
  Host& host_;
  Counts counts_;
  uint64_t device_used_ = 0;  // in whole units, as the device counts
  uint64_t blocks_made_ = 0, segments_made_ = 0;
  Addresses addresses_;
  Arena<Block> blocks_;
  Arena<Segment> segments_;
  PoolPair default_;
  std::map<uint64_t, std::unique_ptr<PoolPair>> private_;

  Block* make_block(uint64_t stream, uint64_t address, uint64_t size, BlockPool& pool,
                    Segment* segment);
};

}  // namespace pytracer::simulator
