// The memory at the start of a simulation, as a recording has it at its first event.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "simulator/allocator.h"

namespace pytracer::simulator {

// Builds the segments in the order of their addresses. Those that do not expand keep their distances,
// so that memory between them is given out as before. Expandable segments get other addresses, because
// the size of their ranges depends on the device: only the places inside a range matter.
class StartBuilder {
 public:
  StartBuilder(Allocator& allocator, const Start& start, std::vector<Block*>& numbered)
      : allocator_(allocator), start_(start), numbered_(numbered) {}

  void build() {
    check();
    // Blocks that are made later were created later than those of the start.
    allocator_.blocks_made_ = start_.blocks;
    for (size_t i = 0; i < start_.segments; ++i) {
      if (!start_.is_expandable[i]) add_segment(i);
    }
    for (size_t i = 0; i < start_.segments; ++i) {
      if (start_.is_expandable[i]) add_part(i);
    }
    for (auto& [key, range] : ranges_) close(range);
    Counts& counts = allocator_.counts_;
    counts.peak_reserved_bytes = counts.reserved_bytes;
    allocator_.segments_made_ = start_.segments;
  }

 private:
  // An expandable segment, whose parts are added.
  struct Range {
    uint64_t address = 0, end = 0;  // in the recording; `end` is that of the last part
    Segment* segment = nullptr;
    Block* last = nullptr;
  };

  [[noreturn]] static void refuse(const char* what) {
    throw std::invalid_argument(std::string("the memory at the start has ") + what);
  }

  void check() {
    constexpr auto most = static_cast<int64_t>(kMostBytes);
    int64_t end = 0;
    for (size_t i = 0, block = 0; i < start_.segments; ++i) {
      const int64_t address = start_.address[i], bytes = start_.size_bytes[i];
      if (address < end || bytes <= 0 || bytes > most || address > INT64_MAX / 4) {
        refuse("segments that overlap");
      }
      if (start_.range_address[i] < 0 || start_.range_address[i] > address) {
        refuse("a range that begins after its segment");
      }
      if (start_.stream[i] < 0 || start_.pool[i] < 0) refuse("a stream or a pool below 0");
      end = address + bytes;
      int64_t filled = 0;
      first_block_.push_back(block);
      for (; block < start_.blocks && start_.block_segment[block] == static_cast<int64_t>(i); ++block) {
        const int64_t size = start_.block_size_bytes[block];
        if (size <= 0 || size > bytes - filled) refuse("a block that is not in its segment");
        filled += size;
        const int64_t number = start_.block_number[block];
        if (number < -1 || number >= static_cast<int64_t>(numbered_.size())) {
          refuse("a block without a request");
        }
      }
      if (filled != bytes) refuse("a segment that blocks do not fill");
    }
    first_block_.push_back(start_.blocks);
  }

  BlockPool& pool_of(size_t i) {
    auto& pair = allocator_.pair_of(static_cast<uint64_t>(start_.pool[i]));
    return start_.is_small[i] ? pair.small : pair.large;
  }

  void add_segment(size_t i) {
    const auto bytes = static_cast<uint64_t>(start_.size_bytes[i]);
    const uint64_t address =
        allocator_.addresses_.take_at(static_cast<uint64_t>(start_.address[i]), bytes);
    Segment* segment = allocator_.segments_.make(
        {address, bytes, 0, static_cast<uint64_t>(start_.order[i])});
    add_blocks(i, address, segment, nullptr);
  }

  void add_part(size_t i) {
    BlockPool& pool = pool_of(i);
    const auto address = static_cast<uint64_t>(start_.address[i]);
    const uint64_t end = address + static_cast<uint64_t>(start_.size_bytes[i]);
    Range& range = ranges_[{start_.stream[i], start_.pool[i], start_.is_small[i]}];
    uint64_t bytes = allocator_.range_bytes(pool);
    if (range.segment == nullptr || end - range.address > range.segment->range_bytes) {
      close(range);
      range.address = static_cast<uint64_t>(start_.range_address[i]);
      if (end - range.address > bytes) range.address = address;
      range.end = range.address;
      bytes = std::max(bytes, end - range.address);
      range.segment = allocator_.segments_.make({allocator_.addresses_.take(bytes), bytes,
                                                 allocator_.page_bytes(pool),
                                                 static_cast<uint64_t>(start_.order[i])});
      range.last = nullptr;
    }
    if (address > range.end) add_unmapped(range, pool, start_.stream[i], address);
    range.last = add_blocks(i, range.segment->address + (address - range.address), range.segment,
                            range.last);
    range.end = end;
  }

  // Adds the memory without pages between a part and the next one.
  void add_unmapped(Range& range, BlockPool& pool, int64_t stream, uint64_t end) {
    Block* block = allocator_.make_block(static_cast<uint64_t>(stream),
                                         range.segment->address + (range.end - range.address),
                                         end - range.end, pool, range.segment);
    block->is_mapped = false;
    if (range.last != nullptr) allocator_.link_after(block, range.last);
    pool.unmapped.insert(block);
    range.last = block;
    range.end = end;
  }

  // Adds the memory without pages behind the last part.
  void close(Range& range) {
    if (range.segment == nullptr) return;
    const uint64_t end = range.address + range.segment->range_bytes;
    if (range.end < end) {
      add_unmapped(range, *range.last->pool, static_cast<int64_t>(range.last->stream), end);
    }
  }

  // Adds the blocks of a segment behind `last`, and returns the last of them.
  Block* add_blocks(size_t i, uint64_t address, Segment* segment, Block* last) {
    BlockPool& pool = pool_of(i);
    Counts& counts = allocator_.counts_;
    for (size_t k = first_block_[i]; k < first_block_[i + 1]; ++k) {
      Block* block = allocator_.make_block(static_cast<uint64_t>(start_.stream[i]), address,
                                           static_cast<uint64_t>(start_.block_size_bytes[k]), pool, segment);
      block->number = static_cast<uint64_t>(start_.block_order[k]);
      if (last != nullptr) allocator_.link_after(block, last);
      if (start_.block_number[k] >= 0) {
        block->is_allocated = block->counts = true;
        counts.allocated_bytes += block->size;
        numbered_[static_cast<size_t>(start_.block_number[k])] = block;
      } else {
        pool.insert(block);
      }
      address += block->size;
      last = block;
    }
    allocator_.add_reserved(static_cast<uint64_t>(start_.size_bytes[i]));
    return last;
  }

  Allocator& allocator_;
  const Start& start_;
  std::vector<Block*>& numbered_;
  std::vector<size_t> first_block_;
  std::map<std::tuple<int64_t, int64_t, bool>, Range> ranges_;
};

void Allocator::begin(const Start& start, std::vector<Block*>& numbered) {
  StartBuilder(*this, start, numbered).build();
}

// The pages of one request may exceed the fraction: see take_from_device().
bool Allocator::is_within_limits() const {
  const uint64_t pages = rules_.expandable ? rules_.large_page_bytes : 0;
  const bool is_within = rules_.limit_bytes == kNoLimit || counts_.reserved_bytes <= pages ||
                         counts_.reserved_bytes - pages <= rules_.limit_bytes;
  return is_within && device_used_ <= rules_.device_bytes;
}

}  // namespace pytracer::simulator
