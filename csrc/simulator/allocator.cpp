#include "simulator/allocator.h"

#include <algorithm>
#include <iterator>

namespace pytracer::simulator {

Allocator::Allocator(const Rules& rules, Host& host)
    : rules_(rules), host_(host), default_(false, rules.tie) {
  if (rules_.total_bytes == 0) rules_.total_bytes = std::min(rules_.device_bytes, kMostBytes);
}

Allocator::PoolPair& Allocator::pair_of(uint64_t pool) {
  if (pool == 0) return default_;
  auto& pair = private_[pool];
  if (pair == nullptr) pair = std::make_unique<PoolPair>(true, rules_.tie);
  return *pair;
}

Block* Allocator::make_block(uint64_t stream, uint64_t address, uint64_t size, BlockPool& pool,
                             Segment* segment) {
  Block block;
  block.stream = stream;
  block.address = address;
  block.size = size;
  block.pool = &pool;
  block.segment = segment;
  block.number = blocks_made_++;
  return blocks_.make(block);
}

Block* Allocator::allocate(uint64_t requested, uint64_t stream, uint64_t pool_number) {
  if (requested > kMostBytes) return nullptr;
  const uint64_t size = rules_.rounded(requested);
  PoolPair& pair = pair_of(pool_number);
  pair.is_released = false;
  BlockPool& pool = size <= kSmallBytes ? pair.small : pair.large;
  Block* block = find_free(pool, size, stream);
  if (block == nullptr) block = find_memory(pool, size, stream);
  if (block == nullptr) return nullptr;
  block = align(block, size);
  if (rules_.splits(pool.is_small, size, block->size - size)) split(block, size);
  block->is_allocated = block->counts = true;
  counts_.allocated_bytes += block->size;
  return block;
}

void Allocator::leave(Block* block) {
  if (!block->counts) return;
  block->counts = false;
  counts_.allocated_bytes -= block->size;
}

void Allocator::free(Block* block) {
  leave(block);
  block->is_allocated = false;
  merge(block, block->prev);
  merge(block, block->next);
  block->pool->insert(block);
}

// Best fit: the smallest free block of the stream. Blocks that `max_split_size_mb` keeps whole
// serve only requests of their kind, and only if not too much of them would be unused.
Block* Allocator::find_free(BlockPool& pool, uint64_t size, uint64_t stream) {
  if (rules_.collects()) ++pool.calls;
  Block key;
  key.stream = stream;
  key.size = size;
  auto found = pool.free.lower_bound(&key);
  const auto is_usable = [&](auto place) {
    return place != pool.free.end() && (*place)->stream == stream;
  };
  if (!rules_.expandable) {
    // Segments may have been expandable before the start. They serve no request.
    while (is_usable(found) && (*found)->expands()) ++found;
  }
  if (!is_usable(found)) return nullptr;
  if (rules_.expandable && (*found)->expands()) {
    // Of expandable segments, the block with the least room to grow is preferred.
    const auto room = [](const Block* block) {
      const bool grows = block->next != nullptr && !block->next->is_mapped;
      return block->size + (grows ? block->next->size : 0);
    };
    for (auto next = std::next(found); is_usable(next) && (*found)->expands(); ++next) {
      if (room(*next) >= room(*found)) break;
      found = next;
    }
  }
  const uint64_t block_size = (*found)->size;
  if (size < rules_.max_split_bytes && block_size >= rules_.max_split_bytes) return nullptr;
  if (size >= rules_.max_split_bytes && block_size - size >= rules_.max_rounding_bytes) {
    return nullptr;
  }
  Block* block = *found;
  pool.free.erase(found);
  return block;
}

// Finds memory that is not free in the pool: from the device; else after giving back large blocks
// that are not split; else after giving back the cache, for which frees do not wait any longer.
Block* Allocator::find_memory(BlockPool& pool, uint64_t size, uint64_t stream) {
  if (rules_.collects()) collect();
  Block* block = take_from_device(pool, size, stream);
  if (block == nullptr && release_oversize(pool, size, stream)) {
    block = take_from_device(pool, size, stream);
  }
  if (block != nullptr || (pool.is_private && !rules_.pools_give_back)) return block;
  host_.complete_left();
  empty_cache();
  ++counts_.retries;
  return take_from_device(pool, size, stream);
}

Block* Allocator::take_from_device(BlockPool& pool, uint64_t size, uint64_t stream) {
  const uint64_t bytes = rules_.segment_bytes(size);
  // An expandable allocator, too, counts a request's segment against the fraction, not its pages.
  const bool has_limit = rules_.limit_bytes != kNoLimit;
  if (bytes > kMostBytes || (has_limit && counts_.reserved_bytes + bytes > rules_.limit_bytes)) return nullptr;
  if (rules_.expandable) return expand(pool, size, stream);
  if (!fits_device(bytes)) return nullptr;
  const uint64_t address = addresses_.take(bytes);
  Segment* segment = segments_.make({address, bytes, 0, segments_made_++});
  add_reserved(bytes);
  ++counts_.device_allocs;
  host_.on_call(DeviceCall::alloc, address, bytes);
  return make_block(stream, address, bytes, pool, segment);
}
// Applies to large blocks while segments expand: where there is room, a block begins at a multiple of
// the alignment, and the memory before it becomes free.
Block* Allocator::align(Block* block, uint64_t size) {
  if (rules_.alignment_bytes == 0 || !rules_.expandable || size < kUnitBytes) return block;
  const uint64_t beyond = block->address % rules_.alignment_bytes;
  const uint64_t before = beyond == 0 ? 0 : rules_.alignment_bytes - beyond;
  if (before == 0 || before + size > block->size) return block;
  Block* aligned = make_block(block->stream, block->address + before, block->size - before,
                              *block->pool, block->segment);
  link_after(aligned, block);
  block->size = before;
  block->pool->insert(block);
  return aligned;
}

// Leaves the first `size` bytes in `block`, which is in no pool; the rest becomes free.
void Allocator::split(Block* block, uint64_t size) {
  Block* rest = make_block(block->stream, block->address + size, block->size - size, *block->pool, block->segment);
  // The allocator makes a new block of the first part, and keeps the old one for the rest.
  std::swap(rest->number, block->number);
  link_after(rest, block);
  block->size = size;
  block->pool->insert(rest);
}

// Adds the neighbour's memory to a block, if it is free and as mapped as the block.
void Allocator::merge(Block* block, Block* neighbour) {
  if (neighbour == nullptr || neighbour->is_allocated) return;
  if (neighbour->is_mapped != block->is_mapped) return;
  if (neighbour->is_mapped) {
    block->pool->free.erase(neighbour);
  } else {
    block->pool->unmapped.erase(neighbour);
  }
  if (block->prev == neighbour) {
    block->address = neighbour->address;
    block->prev = neighbour->prev;
    if (block->prev != nullptr) block->prev->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->prev = block;
  }
  block->size += neighbour->size;
  blocks_.discard(neighbour);
}

void Allocator::link_after(Block* block, Block* prev) {
  block->prev = prev;
  block->next = prev->next;
  if (block->next != nullptr) block->next->prev = block;
  prev->next = block;
}

void Allocator::add_reserved(uint64_t bytes) {
  counts_.reserved_bytes += bytes;
  device_used_ += Addresses::whole(bytes);
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, counts_.reserved_bytes);
}

void Allocator::remove_reserved(uint64_t bytes) {
  counts_.reserved_bytes -= bytes;
  device_used_ -= Addresses::whole(bytes);
}

// How cached memory returns to the device.

void Allocator::empty_cache() {
  release_cached(default_.large);
  release_cached(default_.small);
  for (auto& [number, pair] : private_) {
    if (!pair->is_released) continue;
    release_cached(pair->small);
    release_cached(pair->large);
  }
}

void Allocator::release_pool(uint64_t pool) {
  if (pool == 0) return;
  const auto found = private_.find(pool);
  if (found == private_.end()) return;
  PoolPair& pair = *found->second;
  pair.is_released = true;
  release_cached(pair.small);
  release_cached(pair.large);
}

// Gives the free segments of a pool back, and then the free pages of the expandable ones.
void Allocator::release_cached(BlockPool& pool) {
  std::vector<Block*> expandable;
  for (auto place = pool.free.begin(); place != pool.free.end();) {
    Block* block = *place++;
    if (block->expands()) {
      expandable.push_back(block);
    } else if (!block->is_split()) {
      release(block);
    }
  }
  for (Block* block : expandable) unmap(block);
}

void Allocator::release(Block* block) {
  block->pool->free.erase(block);
  remove_reserved(block->size);
  ++counts_.device_frees;
  host_.on_call(DeviceCall::free, block->address, block->size);
  addresses_.give_back(block->address, block->size);
  segments_.discard(block->segment);
  blocks_.discard(block);
}

// Applies to requests of all sizes while `max_split_size_mb` is set and segments do not expand: gives
// back the smallest free block that is large enough, or else large blocks, the largest first, until
// they are.
bool Allocator::release_oversize(BlockPool& pool, uint64_t size, uint64_t stream) {
  if (rules_.max_split_bytes == kNoLimit || rules_.expandable) return false;
  if (rules_.waits_to_release) host_.on_synchronized();
  Block key;
  key.stream = stream;
  key.size = std::max(size, rules_.max_split_bytes);
  auto place = pool.free.lower_bound(&key);
  if (place != pool.free.end() && (*place)->stream == stream) {
    if ((*place)->is_split()) return false;
    release(*place);
    return true;
  }
  uint64_t released = 0;
  while (released < key.size && place != pool.free.begin()) {
    place = std::prev(place);
    Block* block = *place;
    if (block->size < rules_.max_split_bytes || block->stream != stream) break;
    if (block->is_split()) break;  // the real allocator fails here
    released += block->size;
    const auto after = std::next(place);
    release(block);
    place = after;
  }
  return released >= key.size;
}

// Applies above the collection threshold: gives back large blocks that are not split and that have
// not been used for longer than the average, until the reserved bytes are below the threshold. Free
// blocks that fill an expandable segment count in the average, and stay.
void Allocator::collect() {
  const auto threshold = static_cast<uint64_t>(rules_.collection_threshold *
                                               static_cast<double>(rules_.limit_bytes));
  if (counts_.reserved_bytes <= threshold) return;
  const uint64_t target = counts_.reserved_bytes - threshold;
  BlockPool& pool = default_.large;
  uint64_t reclaimed = 0, ages = 0, candidates = 0;
  for (const Block* block : pool.free) {
    if (block->is_split()) continue;
    ages += pool.age(block);
    ++candidates;
  }
  if (candidates > 0 && rules_.waits_to_release) host_.on_synchronized();
  for (bool has_freed = true; has_freed && reclaimed < target && candidates > 0;) {
    const double average = static_cast<double>(ages) / static_cast<double>(candidates);
    has_freed = false;
    for (auto place = pool.free.begin(); place != pool.free.end();) {
      Block* block = *place++;
      if (block->is_split() || block->expands()) continue;
      if (static_cast<double>(pool.age(block)) < average) continue;
      has_freed = true;
      reclaimed += block->size;
      ages -= pool.age(block);
      --candidates;
      release(block);
    }
  }
}

}  // namespace pytracer::simulator
