#include "record/call_tree.h"

#include <algorithm>
#include <utility>

namespace pytracer {

namespace {

// How many items fit the bound if there is nothing else. Reserves address space, not memory.
template <class Item>
uint32_t max_items(uint64_t max_bytes) noexcept {
  return static_cast<uint32_t>(std::min<uint64_t>(max_bytes / sizeof(Item) + 2, CallTree::kFlags - 1));
}

BoxPart part_of_tree(const std::shared_ptr<Box>& box, BoxKind kind, bool is_spare) {
  const auto bits = static_cast<uint32_t>(kind) | (is_spare ? static_cast<uint32_t>(BoxKind::spare) : 0);
  return {box, static_cast<BoxKind>(bits)};
}

}  // namespace

CallTree::CallTree(uint64_t max_bytes, const std::shared_ptr<Box>& box, bool is_spare)
    : max_bytes_(max_bytes),
      base_(0),
      codes_(max_items<Code>(max_bytes), part_of_tree(box, BoxKind::codes, is_spare)),
      frames_(max_items<Frame>(max_bytes), part_of_tree(box, BoxKind::frames, is_spare)),
      nodes_(max_items<Node>(max_bytes), part_of_tree(box, BoxKind::nodes, is_spare)),
      names_(static_cast<uint32_t>(std::min<uint64_t>(max_bytes, UINT32_MAX)),
             2 * max_items<Code>(max_bytes), part_of_tree(box, BoxKind::names, is_spare)) {}

CallTree::CallTree(const Rows& rows, uint32_t last_stack)
    : max_bytes_(UINT64_MAX), base_(last_stack), codes_(static_cast<uint32_t>(rows.codes.size())),
      frames_(static_cast<uint32_t>(rows.frames.size())),
      nodes_(static_cast<uint32_t>(rows.nodes.size())),
      names_(UINT32_MAX, static_cast<uint32_t>(rows.names.size())) {
  for (const std::string& name : rows.names) names_.intern(name);
  for (const Code& code : rows.codes) codes_.add(code);
  for (const Frame& frame : rows.frames) frames_.add(frame);
  for (const Node& node : rows.nodes) {
    const uint32_t number = nodes_.add(node);
    used_ += has_flag(number, kUsed);
    truncated_ += has_flag(number, kTruncated);
  }
}

Backward CallTree::backward(uint32_t stack) const noexcept {
  Backward backward{stack, 0, 0, false};
  for (; backward.own != 0 && StackLink::is_link(frame_of(backward.own)); backward.own = outer(backward.own)) {
    backward.add(frame_of(backward.own));
  }
  return backward;
}

CallTree::Frames CallTree::frames(uint32_t stack, uint32_t depth) const {
  Frames frames{{}, false};
  uint32_t node = node_of(stack);
  for (; nodes_[node].frame != 0; node = outer_node(node)) {
    frames.innermost_first.push_back(nodes_[node].frame);
  }
  const uint32_t base = outer_node(node);
  const size_t most = std::min(depth, PathBase::depth(base));
  frames.is_truncated = PathBase::is_cut(base) || frames.innermost_first.size() > most;
  frames.innermost_first.resize(std::min(frames.innermost_first.size(), most));
  return frames;
}

bool CallTree::take(uint64_t bytes) noexcept {
  if (bytes_ + reserved_ + bytes > max_bytes_) return false;
  bytes_ += bytes;
  return true;
}

inline bool CallTree::holds(uint32_t number, WalkMemo& walk, uint32_t outer) const noexcept {
  const Node* const nodes = &nodes_[0];
  const Frame* const frames = &frames_[0];
  const auto place = [frames](const Node& node) {
    return __atomic_load_n(&frames[node.frame].place, __ATOMIC_RELAXED);
  };
  const Node* node = nodes + number;
  if (place(*node) != walk.top_place()) return false;
  WalkMemo::Entry* const first = walk.entry(walk.first_unknown());
  for (WalkMemo::Entry* entry = walk.entry(walk.size() - 1); entry != first;) {
    number = outer_of(*node);
    node = nodes + number;
    --entry;
    if (place(*node) != entry->place) return false;
    entry->node = number;
  }
  return outer_of(*node) == outer;
}

bool CallTree::find(WalkMemo& walk) const noexcept {
  const uint32_t outer = known_node(walk);
  const uint32_t hash = walk.top_hash();
  const uint32_t node = nodes_.find(hash, [&](uint32_t candidate) {
    const Node& noted = nodes_[candidate];
    return noted.path_hash == hash && !StackLink::is_link(noted.frame) &&
           holds(candidate, walk, outer);
  });
  if (node == 0 || !has_flag(node, kUsed)) return false;
  walk.set_stack(base_ + node, node, has_flag(node, kMayRunNode));
  return true;
}

uint32_t CallTree::find_node(uint32_t outer, uint32_t frame, uint32_t path_hash) const noexcept {
  return nodes_.find(path_hash, [&](uint32_t candidate) {
    return nodes_[candidate].frame == frame && outer_node(candidate) == outer;
  });
}

uint32_t CallTree::find_link(uint32_t outer, uint32_t link) const noexcept {
  const uint32_t hash = PathHash::extended(nodes_[node_of(outer)].path_hash, link);
  return number_of(find_node(node_of(outer), link, hash));
}

uint32_t CallTree::intern_node(uint32_t outer, uint32_t frame, uint32_t path_hash) noexcept {
  if (const uint32_t known = find_node(outer, frame, path_hash)) return known;
  if (nodes_.is_full() || !take(Interner<Node>::kItemBytes)) return 0;
  const bool calls_engine = frame == 0 ? PathBase::is_cut(outer) : has_flag(outer, kEngine) || is_engine_frame(frame);
  return nodes_.add({frame, outer | (calls_engine ? kEngine : 0u), 0, path_hash});
}

uint32_t CallTree::add(WalkMemo& walk) noexcept {
  uint32_t node = known_node(walk);
  if (walk.first_unknown() == 0) {
    node = intern_node(walk.base(), 0, PathHash::of_base(walk.base()));
    if (node != 0) __atomic_store_n(&last_base_, uint64_t{walk.base()} << 32 | node, __ATOMIC_RELAXED);
  }
  bool has_hidden = false;
  for (uint32_t i = walk.first_unknown(); i < walk.size() && node != 0; ++i) {
    WalkMemo::Entry& entry = *walk.entry(i);
    const RawFrame raw = read_frame(entry.frame);
    has_hidden |= raw.is_hidden;
    if (!raw.is_hidden) {
      const uint64_t place = i + 1 != walk.size() ? entry.place : walk.top_place();
      const uint32_t hash = PathHash::extended(nodes_[node].path_hash, place);
      const uint32_t frame = intern_frame(place, raw);
      node = frame != 0 ? intern_node(node, frame, hash) : 0;
    }
    entry.node = node;
  }
  const bool is_empty = nodes_[node].frame == 0;  // or there is no room
  if (!is_empty) {
    set_used(node, walk.is_truncated());
    walk.set_stack(base_ + node, node, has_flag(node, kMayRunNode));
  }
  // A node's path has no hidden frames, so the next walk cannot be compared with it.
  if (is_empty || has_hidden) walk.start_afresh();
  return is_empty ? 0 : base_ + node;
}

uint32_t CallTree::add_link(uint32_t outer, uint32_t link) noexcept {
  const uint32_t around = node_of(outer);
  const uint32_t hash = PathHash::extended(nodes_[around].path_hash, link);
  const uint32_t node = intern_node(around, link, hash);
  if (node != 0) set_used(node, has_flag(around, kTruncated));
  return number_of(node);
}

void CallTree::add_flags(uint32_t node, uint32_t flags) noexcept {
  uint32_t& word = nodes_[node].outer_and_flags;
  __atomic_store_n(&word, word | flags, __ATOMIC_RELEASE);
}

void CallTree::set_used(uint32_t node, bool is_truncated) noexcept {
  if (has_flag(node, kUsed)) return;
  ++used_;
  truncated_ += is_truncated;
  add_flags(node, is_truncated ? kUsed | kTruncated : kUsed);
}

uint32_t CallTree::intern_code(const void* pointer) noexcept {
  const uint32_t known = code_at(pointer);
  if (known != 0 || codes_.is_full()) return known;
  CodeWatch::meet(pointer);
  const std::string_view filename = code_filename(pointer, filename_), name = code_name(pointer, name_);
  // Of a code object without names, nobody could say what it is.
  if (!take(Interner<Code>::kItemBytes + names_.growth(filename) + names_.growth(name))) return 0;
  const bool is_engine = name == "_engine_run_backward";  // of torch.autograd.graph
  return codes_.add({pointer, 0, 0, names_.intern(filename), names_.intern(name), 0, is_engine});
}

uint32_t CallTree::intern_frame(uint64_t place, const RawFrame& raw) noexcept {
  const uint32_t known =
      frames_.find(mix(place), [&](uint32_t frame) { return frames_[frame].place == place; });
  if (known != 0) return known;
  const uint32_t code = intern_code(raw.code);
  if (code == 0 || frames_.is_full() || !take(Interner<Frame>::kItemBytes)) return 0;
  return add_frame({place, code, raw.offset, code_line(raw.code, raw.offset), 0, 0, 0});
}

uint32_t CallTree::add_frame(const Frame& frame) noexcept {
  const uint32_t id = frames_.add(frame);
  frames_[id].next_of_code = codes_[frame.code].newest_frame;
  codes_[frame.code].newest_frame = id;
  return id;
}

uint32_t CallTree::copy(CallTree& from, uint32_t stack) noexcept {
  const uint64_t reserved = std::exchange(reserved_, 0), before = bytes_;
  const uint32_t innermost = from.node_of(stack);
  uint32_t path[WalkMemo::kCapacity + StackLink::kMost];
  uint32_t count = 0, old = innermost;
  for (; from.nodes_[old].frame != 0 && !from.has_flag(old, kCopied); old = from.outer_node(old)) {
    path[count++] = old;
  }
  uint32_t node = 0;
  if (from.nodes_[old].frame != 0) {
    node = from.nodes_[old].next;
  } else if (old != 0) {
    const uint32_t base = from.outer_node(old);
    node = intern_node(base, 0, PathHash::of_base(base));
  }
  while (count != 0) {
    old = path[--count];
    const uint32_t frame = copy_frame(from, from.nodes_[old].frame);
    const uint64_t place = StackLink::is_link(frame) ? frame : frames_[frame].place;
    node = intern_node(node, frame, PathHash::extended(nodes_[node].path_hash, place));
    from.nodes_[old].next = node;
    from.add_flags(old, kCopied);
  }
  if (from.has_flag(innermost, kUsed) && !has_flag(node, kUsed)) {
    const bool is_truncated = from.has_flag(innermost, kTruncated);
    set_used(node, is_truncated);
    --from.used_;
    from.truncated_ -= is_truncated;
  }
  reserved_ = reserved - std::min(reserved, bytes_ - before);
  return number_of(node);
}

uint32_t CallTree::copy_frame(CallTree& from, uint32_t id) noexcept {
  if (StackLink::is_link(id)) {
    const uint32_t forward = StackLink::forward_of(id);
    return forward == 0 ? id : StackLink::forward(copy(from, forward), StackLink::is_exact(id));
  }
  Frame& old = from.frames_[id];
  const uint32_t code = copy_code(from, old.code);
  if (old.copy == 0 && old.place != 0) {
    old.copy = frames_.find(mix(old.place), [&](uint32_t frame) {
      return frames_[frame].place == old.place;
    });
  }
  if (old.copy == 0) {
    take(Interner<Frame>::kItemBytes);
    old.copy = add_frame({old.place, code, old.offset, old.line, 0, 0, 0});
  }
  return old.copy;
}

uint32_t CallTree::copy_code(CallTree& from, uint32_t id) noexcept {
  Code& old = from.codes_[id];
  if (old.copy == 0 && old.pointer != nullptr) old.copy = code_at(old.pointer);
  if (old.copy == 0) {
    const std::string_view filename = from.text(old.filename), name = from.text(old.name);
    take(Interner<Code>::kItemBytes + names_.growth(filename) + names_.growth(name));
    old.copy = codes_.add({old.pointer, 0, 0, names_.intern(filename), names_.intern(name), 0, old.is_engine});
  }
  return old.copy;
}

uint32_t CallTree::code_at(const void* pointer) const noexcept {
  return codes_.find(mix(reinterpret_cast<uint64_t>(pointer)),
                     [&](uint32_t code) { return codes_[code].pointer == pointer; });
}

bool CallTree::retire(const void* pointer) noexcept {
  const uint32_t code = code_at(pointer);
  if (code == 0) return false;
  for (uint32_t frame = codes_[code].newest_frame; frame != 0; frame = frames_[frame].next_of_code) {
    __atomic_store_n(&frames_[frame].place, 0, __ATOMIC_RELEASE);
  }
  codes_[code].pointer = nullptr;
  return true;
}

}  // namespace pytracer
