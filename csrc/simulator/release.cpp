// How cached memory returns to the device.
#include <algorithm>
#include <iterator>
#include <vector>

#include "simulator/allocator.h"

namespace pytracer::simulator {

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
