// Expandable segments: ranges of addresses whose pages get memory when a block needs them.
#include <algorithm>
#include <utility>

#include "simulator/allocator.h"

namespace pytracer::simulator {

// Makes a block of at least `size` bytes from unmapped memory, and from the free memory before it.
// Returns nullptr if the device has not enough memory: pages mapped until then stay mapped.
Block* Allocator::expand(BlockPool& pool, uint64_t size, uint64_t stream) {
  Block* block = find_room(pool, size, stream);
  if (block == nullptr) return nullptr;
  if (!block->is_mapped && !map(block, std::min(block->size, size))) return nullptr;
  while (block->size < size) {
    Block* next = block->next;
    if (!map(next, std::min(size - block->size, next->size))) return nullptr;
    block = next;
  }
  pool.free.erase(block);
  return block;
}

// Finds the lowest room for a block in the segments of a stream, or reserves a new range.
Block* Allocator::find_room(BlockPool& pool, uint64_t size, uint64_t stream) {
  const auto has_room = [size](const Block* block) {
    uint64_t bytes = 0;
    for (; bytes < size && block != nullptr && !block->is_allocated; block = block->next) {
      bytes += block->size;
    }
    return bytes >= size;
  };
  Block key;
  key.stream = stream;
  for (auto place = pool.unmapped.lower_bound(&key);
       place != pool.unmapped.end() && (*place)->stream == stream; ++place) {
    Block* block = *place;
    if (block->prev != nullptr && !block->prev->is_allocated) block = block->prev;
    if (has_room(block)) return block;
  }
  const uint64_t bytes = range_bytes(pool), address = addresses_.take(bytes);
  Segment* segment = segments_.make({address, bytes, page_bytes(pool), segments_made_++});
  Block* made = make_block(stream, address, bytes, pool, segment);
  made->is_mapped = false;
  pool.unmapped.insert(made);
  return bytes >= size ? made : nullptr;
}
// The range is larger than the device, so that memory can move to its end.
uint64_t Allocator::range_bytes(const BlockPool& pool) const {
  const uint64_t page = page_bytes(pool);
  const auto factor = static_cast<double>(rules_.total_bytes) * rules_.range_factor;
  const uint64_t bytes = rules_.range_bytes != 0 ? rules_.range_bytes : static_cast<uint64_t>(factor);
  return std::max((bytes + page - 1) / page, uint64_t{1}) * page;
}

// Maps pages for the first `size` bytes of an unmapped block, which begins with a page.
bool Allocator::map(Block* block, uint64_t size) {
  const uint64_t page = block->segment->page_bytes;
  const uint64_t mapped = (size + page - 1) / page * page;
  if (!fits_device(mapped)) return false;
  BlockPool& pool = *block->pool;
  pool.unmapped.erase(block);
  block->is_mapped = true;
  if (mapped < block->size) {
    Block* rest = make_block(block->stream, block->address + mapped, block->size - mapped, pool, block->segment);
    rest->is_mapped = false;
    link_after(rest, block);
    block->size = mapped;
    pool.unmapped.insert(rest);
  }
  const uint64_t address = block->address;
  merge(block, block->prev);
  merge(block, block->next);
  pool.insert(block);
  add_reserved(mapped);
  ++counts_.maps;
  host_.on_call(DeviceCall::map, address, mapped);
  return true;
}

// Gives the pages that are wholly in a free block back. A segment without mapped pages ends.
void Allocator::unmap(Block* block) {
  const Segment& segment = *block->segment;
  const uint64_t page = segment.page_bytes, start = block->address - segment.address;
  const uint64_t begin = segment.address + (start + page - 1) / page * page;
  const uint64_t end = segment.address + (start + block->size) / page * page;
  if (begin >= end) return;
  BlockPool& pool = *block->pool;
  pool.free.erase(block);
  if (const uint64_t before = begin - block->address; before > 0) {
    Block* rest = make_block(block->stream, block->address, before, pool, block->segment);
    rest->prev = std::exchange(block->prev, rest);
    rest->next = block;
    if (rest->prev != nullptr) rest->prev->next = rest;
    pool.insert(rest);
  }
  if (const uint64_t after = block->address + block->size - end; after > 0) {
    Block* rest = make_block(block->stream, end, after, pool, block->segment);
    link_after(rest, block);
    pool.insert(rest);
  }
  block->address = begin;
  block->size = end - begin;
  block->is_mapped = false;
  const uint64_t size = block->size;
  merge(block, block->prev);
  merge(block, block->next);
  pool.unmapped.insert(block);
  remove_reserved(size);
  ++counts_.unmaps;
  host_.on_call(DeviceCall::unmap, begin, size);
  if (block->is_split()) return;
  pool.unmapped.erase(block);
  addresses_.give_back(segment.address, segment.range_bytes);
  segments_.discard(block->segment);
  blocks_.discard(block);
}

}  // namespace pytracer::simulator
