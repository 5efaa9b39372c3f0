#include <unordered_map>

#include "restore/restored_view.h"
#include "support/utf8.h"

namespace pytracer {

namespace {

constexpr int kMostRounds = 8;
constexpr uint32_t kMostNested = 4096;  // frames and links in each other; a walk has fewer

struct Tree {
  uint64_t serial;
  uint32_t base;
  CallTree::Rows rows;
  // A stack without links.
  bool has(uint32_t stack) const noexcept {
    const uint32_t place = stack - base - 1;
    return place < rows.nodes.size() && !StackLink::is_link(rows.nodes[place].frame);
  }
};

// The first node that cannot be, or the number of nodes. All readers end at a node without a frame. Links to
// the stacks of `all` are sound.
size_t first_damaged(const Tree& tree, size_t node_types, size_t phases, const std::vector<Tree>& all) {
  const auto& nodes = tree.rows.nodes;
  const auto is_known = [&](uint32_t stack) {
    return std::any_of(all.begin(), all.end(), [&](const Tree& each) { return each.has(stack); });
  };
  std::vector<uint32_t> nested(nodes.size() + 1);  // by number
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint32_t frame = nodes[i].frame;
    if (frame == 0) continue;  // a base
    const uint32_t outer = CallTree::outer_of(nodes[i]);
    if (outer > i) return i;  // node i has the number i + 1
    nested[i + 1] = nested[outer] + 1;
    if (nested[i + 1] > kMostNested) return i;
    if (!StackLink::is_link(frame)) {
      const bool is_in_link = outer != 0 && StackLink::is_link(nodes[outer - 1].frame);
      if (frame > tree.rows.frames.size() || is_in_link) return i;
    } else if (const uint32_t forward = StackLink::forward_of(frame)) {
      if (!is_known(forward)) return i;
    } else if (!StackLink::is_parameter(frame) &&
               (StackLink::node_of(frame) > node_types || StackLink::phase_of(frame) > phases)) {
      return i;
    }
  }
  return nodes.size();
}

}  // namespace

std::shared_ptr<StackTable> restored_stacks(const BoxReader& box, size_t node_types, size_t phases) {
  std::vector<Tree> trees;
  for (const BoxReader::Array& array : box.arrays()) {
    if (array.kind != BoxKind::nodes || &array != box.newest(BoxKind::nodes, 0, array.number)) continue;
    const auto rows = [&](BoxKind kind) { return box.newest(kind, 0, array.number); };
    const BoxReader::Array* const codes = rows(BoxKind::codes);
    const BoxReader::Array* const frames = rows(BoxKind::frames);
    if (codes == nullptr || frames == nullptr) continue;
    trees.push_back({array.serial, array.number,
                     {box.items<CallTree::Code>(codes, 1, codes->count + 1),
                      box.items<CallTree::Frame>(frames, 1, frames->count + 1),
                      box.items<CallTree::Node>(&array, 1, array.count + 1),
                      box.names(BoxKind::names, 0, array.number)}});
  }
  std::sort(trees.begin(), trees.end(), [](const Tree& a, const Tree& b) { return a.serial > b.serial; });
  if (trees.size() > 2) trees.resize(2);  // the others were kept by readers
  for (Tree& tree : trees) {
    auto& [codes, frames, nodes, names] = tree.rows;
    for (std::string& name : names) name = to_utf8(name, Surrogates::allowed);
    for (CallTree::Code& code : codes) {
      if (code.filename > names.size()) code.filename = 0;
      if (code.name > names.size()) code.name = 0;
    }
    for (CallTree::Frame& frame : frames) {
      if (frame.code > codes.size()) frame.code = 0;
    }
  }
  bool is_sound = false;
  for (int round = 0; !is_sound; ++round) {  // links may lead to what is left out in another tree
    is_sound = true;
    for (Tree& tree : trees) {
      const size_t sound = first_damaged(tree, node_types, phases, round < kMostRounds ? trees : std::vector<Tree>());
      is_sound &= sound == tree.rows.nodes.size();
      tree.rows.nodes.resize(sound);
    }
  }
  const auto made = [&](size_t i) {
    return i < trees.size() ? std::make_shared<CallTree>(trees[i].rows, trees[i].base) : nullptr;
  };
  auto current = made(0);
  if (!current) current = std::make_shared<CallTree>(CallTree::Rows{}, 0);
  return std::make_shared<StackTable>(std::move(current), made(1));
}

constexpr uint64_t kRounding = 512;       // of blocks, as all of torch's caching allocators round
constexpr uint64_t kSmallSegment = 2 << 20;

static uint64_t rounded(uint64_t size) noexcept {
  return size > UINT64_MAX - kRounding ? size : (size + kRounding - 1) / kRounding * kRounding;
}

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
