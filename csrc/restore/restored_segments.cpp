#include <unordered_map>

#include "restore/restored_view.h"

namespace pytracer {

namespace {

constexpr uint64_t kRounding = 512;       // of blocks, as all of torch's caching allocators round
constexpr uint64_t kSmallSegment = 2 << 20;

uint64_t rounded(uint64_t size) noexcept {
  return size > UINT64_MAX - kRounding ? size : (size + kRounding - 1) / kRounding * kRounding;
}

}  // namespace

AllocatorState restored_segments(const DeviceView& device) {
  // The latest events of addresses.
  std::unordered_map<uint64_t, Event> allocated, reserved;
  const DeviceLog::Capture& capture = device.capture;
  any_event(device, [&](const Event& event, uint64_t) {
    if (event.action == PYTRACER_ALLOC) allocated[event.address] = event;
    if (event.action == PYTRACER_SEGMENT_ALLOC || event.action == PYTRACER_SEGMENT_MAP) {
      reserved[event.address] = event;
    }
    return false;
  });
  AllocatorState state;
  const auto begin_segment = [&](uint64_t address, uint64_t size, bool is_expandable) {
    pytracer_segment about{};
    about.address = address;
    about.total_size = size;
    about.device = static_cast<int16_t>(device.device);
    about.is_large = size > kSmallSegment;
    about.is_expandable = is_expandable;
    state.segments.push_back({about, state.blocks.size()});
  };
  const auto add = [&](uint64_t size, uint64_t requested, uint64_t kind) {
    if (size == 0) return;
    pytracer_segment& about = state.segments.back().about;
    state.blocks.push_back({size, requested, kind});
    ++about.block_count;
    if (kind == PYTRACER_INACTIVE) return;
    about.allocated_size += size;
    about.active_size += size;
    about.requested_size += requested;
  };
  const auto take_place = [&](const Event& of) {
    pytracer_segment& about = state.segments.back().about;
    const Pool pool = capture.names->pool(of.pool);
    about.stream = of.stream;
    about.pool_high = pool.high;
    about.pool_low = pool.low;
  };
  const auto take_place_of_block = [&](uint64_t address) {
    const auto found = allocated.find(address);
    if (found != allocated.end()) take_place(found->second);
  };
  auto block = capture.blocks.begin();
  const auto end = capture.blocks.end();
  const auto add_alone = [&](uint64_t until) {  // blocks before an address
    for (; block != end && block->address < until; ++block) {
      begin_segment(block->address, rounded(block->size), false);
      take_place_of_block(block->address);
      add(rounded(block->size), block->size, PYTRACER_ACTIVE_ALLOCATED);
    }
  };
  for (size_t i = 0; i < capture.segments.size();) {
    const LiveBlock& first = capture.segments[i];
    const auto known = reserved.find(first.address);
    const bool is_mapped = known != reserved.end() && known->second.action == PYTRACER_SEGMENT_MAP;
    uint64_t to = first.address + first.size;
    if (to < first.address) break;  // damaged
    // Pieces of one expandable segment
    for (++i; i < capture.segments.size() && is_mapped && capture.segments[i].address == to; ++i) {
      if (to + capture.segments[i].size < to) break;
      to += capture.segments[i].size;
    }
    add_alone(first.address);
    begin_segment(first.address, to - first.address, is_mapped);
    if (known != reserved.end()) take_place(known->second);
    uint64_t at = first.address;
    for (; block != end && block->address < to; ++block) {
      if (block->address < at) continue;  // within the block before: damaged
      add(block->address - at, 0, PYTRACER_INACTIVE);
      const auto next = std::next(block);
      const uint64_t room = (next != end ? std::min(next->address, to) : to) - block->address;
      if (known == reserved.end()) take_place_of_block(block->address);
      // A segment of pinned memory has one block.
      const uint64_t size = device.is_host() ? room : std::min(rounded(block->size), room);
      add(size, block->size, PYTRACER_ACTIVE_ALLOCATED);
      at = block->address + size;
    }
    add(to - at, 0, PYTRACER_INACTIVE);
  }
  add_alone(UINT64_MAX);
  return state;
}

}  // namespace pytracer
