#include "record/stack_table.h"

#include <algorithm>

#include "frames/code_objects.h"

namespace pytracer {

namespace {

// How many items fit the bound if there is nothing else. Reserves address space, not memory.
template <class Item>
uint32_t max_items(uint64_t max_bytes) noexcept {
  return static_cast<uint32_t>(std::min<uint64_t>(max_bytes / sizeof(Item) + 2, 1u << 30));
}

// What an item costs in its index: a bucket.
constexpr uint64_t kIndexBytes = sizeof(uint32_t);
constexpr int32_t kUnresolved = INT32_MIN;

uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 32);
}
uint64_t hash_code(const void* pointer) noexcept {
  return mix(1, reinterpret_cast<uint64_t>(pointer));
}
uint64_t hash_frame(const void* pointer, int32_t offset) noexcept {
  return mix(reinterpret_cast<uint64_t>(pointer),
             static_cast<uint32_t>(offset) * 0xd6e8feb86659fd93ull);
}

}  // namespace

uint64_t StackTable::CodeItems::hash(uint32_t id) const noexcept {
  return hash_code(table.codes_[id].pointer);
}
uint64_t StackTable::FrameItems::hash(uint32_t id) const noexcept {
  return hash_frame(table.frames_[id].pointer, table.frames_[id].offset);
}

StackTable::StackTable(uint64_t max_bytes)
    : max_bytes_(max_bytes),
      codes_(max_items<Code>(max_bytes)),
      frames_(max_items<Frame>(max_bytes)),
      code_index_(code_items_, max_items<Code>(max_bytes)),
      frame_index_(frame_items_, max_items<Frame>(max_bytes)),
      stacks_(max_items<Stack>(max_bytes)),
      bytes_(code_index_.bytes() + frame_index_.bytes() + stacks_.bytes() + cache_.reserve(1)),
      strings_(2 * size_t{max_items<Code>(max_bytes)} + 2) {
  strings_[0].text = &string_ids_.emplace(std::string(), 0).first->first;  // a name that was not read
}

uint64_t StackTable::new_seed() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

bool StackTable::take(uint64_t bytes) noexcept {
  if (!has_room(bytes)) return false;
  bytes_ += bytes;
  return true;
}

uint32_t StackTable::intern_code(const void* pointer) noexcept {
  const uint32_t known = code_index_.find(
      hash_code(pointer), [&](uint32_t id) { return codes_[id].pointer == pointer; });
  const uint64_t place = free_codes_.count != 0 ? 0 : sizeof(Code) + kIndexBytes;
  if (known != 0 || !take(place + kNameBytes)) return known;
  const uint32_t id = free_codes_.place(codes_, code_count_);
  codes_[id] = {pointer, 0, 0, 0, 0, 0, false};
  code_index_.insert(id);
  return id;
}

inline uint32_t StackTable::intern_frame(const RawFrame& raw) noexcept {
  const uint32_t known = frame_index_.find(hash_frame(raw.code, raw.offset), [&](uint32_t id) {
    return frames_[id].pointer == raw.code && frames_[id].offset == raw.offset;
  });
  return known != 0 ? known : add_frame(raw);
}

uint32_t StackTable::add_frame(const RawFrame& raw) noexcept {
  const uint32_t code = intern_code(raw.code);
  if (code == 0 || (free_frames_.count == 0 && !take(sizeof(Frame) + kIndexBytes))) return 0;
  const uint32_t id = free_frames_.place(frames_, frame_count_);
  reused_frames_ = std::min(reused_frames_, id);  // a new place is behind all resolved ones
  frames_[id] = {raw.code, code, raw.offset, kUnresolved, 0, codes_[code].newest_frame};
  codes_[code].newest_frame = id;
  frame_index_.insert(id);
  return id;
}

uint32_t StackTable::add_stack(uint32_t outer, uint32_t frame, bool truncated) noexcept {
  if (stacks_.places() == 0) {
    if (bytes_ + StackTree::kStackBytes > max_stack_bytes_) return 0;
    bytes_ += StackTree::kStackBytes;
  }
  if (++since_collection_ % 32 == 0) want_collection();
  if (!StackLink::is_link(frame)) ++codes_[frames_[frame].code].stacks;
  return stacks_.add(outer, frame, truncated);
}

inline uint32_t StackTable::intern_stack(uint32_t outer, uint32_t frame, bool truncated) noexcept {
  const uint32_t known = stacks_.find(outer, frame, truncated);
  return known != 0 ? known : add_stack(outer, frame, truncated);
}

inline uint32_t StackTable::intern_walk(const RawFrame* raw, const Walk& walk) noexcept {
  const uint32_t last_frames = walk.truncated == last_walk_truncated_ ? last_walk_frames_ : 0;
  const uint32_t most = std::min(walk.frames, last_frames);
  const RawFrame* next = raw + walk.frames;  // behind the outermost frame that is left
  Step* step = last_walk_;
  for (const Step* end = step + most; step != end; ++step, --next) {
    if (step->code != next[-1].code || step->offset != next[-1].offset) break;
  }
  uint32_t id = step != last_walk_ ? step[-1].stack : 0;
  last_walk_truncated_ = walk.truncated;
  for (; next != raw; ++step, --next) {
    const uint32_t frame = intern_frame(next[-1]);
    if (frame == 0) break;
    const uint32_t inner = intern_stack(id, frame, walk.truncated);
    if (inner == 0) break;
    id = inner;
    *step = {next[-1].code, next[-1].offset, id};
  }
  last_walk_frames_ = static_cast<uint32_t>(step - last_walk_);
  stacks_.mark(id);  // new stacks are not marked, and a collection may be under way
  return next == raw ? id : 0;
}

uint32_t StackTable::intern(const RawFrame* raw, const Walk& walk, const WalkKey& key) noexcept {
  std::lock_guard lock(mutex_);
  return finish_intern(intern_walk(raw, walk), walk.truncated, walk.keyed ? &key : nullptr);
}

inline uint32_t StackTable::finish_intern(uint32_t id, bool truncated,
                                          const WalkKey* key) noexcept {
  if (id == 0) {
    ++dropped_;
    ++since_collection_;
    want_collection();
    return 0;
  }
  if (stacks_.set_walk(id)) {
    ++walks_;
    truncated_ += truncated;
    const uint64_t growth = cache_.growth(walks_);
    if (growth != 0 && bytes_ + growth <= max_stack_bytes_) bytes_ += cache_.reserve(walks_);
  }
  if (key != nullptr) cache_.insert(*key, id);
  return id;
}

uint32_t StackTable::intern_backward(const Backward& backward, uint64_t seed) noexcept {
  const WalkKey key = backward.key(seed);
  if (const uint32_t known = cache_.find(key)) return known;
  std::lock_guard lock(mutex_);
  const bool truncated = stacks_.stack(backward.own).truncated;
  uint32_t id = backward.own;
  bool has_room = true;
  for (const uint32_t link : {StackLink::forward(backward.forward, backward.is_exact),
                              StackLink::parameter(backward.parameter),
                              StackLink::node(backward.node_type, backward.phase)}) {
    if (link == 0 || !has_room) continue;
    const uint32_t inner = intern_stack(id, link, truncated);
    has_room = inner != 0;
    if (has_room) id = inner;
  }
  stacks_.mark(id);  // new stacks are not marked, and a collection may be under way
  if (!has_room) finish_intern(0, truncated, nullptr);
  return id != 0 ? finish_intern(id, truncated, has_room ? &key : nullptr) : 0;
}

Backward StackTable::backward(uint32_t id) const noexcept {
  Backward backward{id, 0, 0, false};
  for (; StackLink::is_link(stack(backward.own).frame); backward.own = stack(backward.own).outer) {
    const uint32_t link = stack(backward.own).frame;
    if (const uint32_t forward = StackLink::forward_of(link)) {
      backward.forward = forward;
      backward.is_exact = StackLink::is_exact(link);
    } else if (StackLink::is_parameter(link)) {
      backward.parameter = StackLink::parameter_of(link);
    } else {
      backward.node_type = StackLink::node_of(link);
      backward.phase = StackLink::phase_of(link);
    }
  }
  return backward;
}

uint32_t StackTable::intern_string(std::string text) noexcept {
  if (text.empty()) return 0;
  try {
    auto known = string_ids_.find(text);
    if (known == string_ids_.end()) {
      const uint64_t bytes = text.size() + kStringBytes;
      if (!has_room(bytes)) return 0;
      known = string_ids_.emplace(std::move(text), 0).first;
      bytes_ += bytes;
      known->second = free_strings_.place(strings_, string_count_);
      strings_[known->second] = {&known->first, 0, 0};
    }
    ++strings_[known->second].uses;
    return known->second;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void StackTable::release_string(uint32_t id) noexcept {
  if (id == 0 || --strings_[id].uses != 0) return;
  bytes_ -= strings_[id].text->size() + kStringBytes;
  string_ids_.erase(string_ids_.find(*strings_[id].text));
  strings_[id].text = strings_[0].text;
  free_strings_.push(strings_, id);
}

void StackTable::name_code(Code& code) {
  code.named = true;
  std::string filename, name;
  try {
    filename = code_filename(code.pointer);
    name = code_name(code.pointer);
  } catch (const std::bad_alloc&) {
    // What was not read stays empty.
  }
  // The kNameBytes that intern_code() reserved are exchanged for the bytes of the names under one
  // lock. Otherwise a hook on another thread could take that room in between.
  std::lock_guard lock(mutex_);
  bytes_ -= kNameBytes;
  code.filename = intern_string(std::move(filename));
  code.name = intern_string(std::move(name));
}

void StackTable::resolve_frame(Frame& frame) {
  Code& code = codes_[frame.code];
  if (!code.named) name_code(code);
  if (frame.line == kUnresolved) frame.line = code_line(code.pointer, frame.offset);
}

void StackTable::code_destroyed(const void* pointer) noexcept {
  uint32_t id;
  uint32_t frame;
  {
    std::lock_guard lock(mutex_);
    id = code_index_.find(hash_code(pointer),
                          [&](uint32_t code) { return codes_[code].pointer == pointer; });
    if (id == 0) return;
    frame = codes_[id].newest_frame;
    last_walk_frames_ = 0;  // it may have this address
    code_index_.erase(id);
    for (uint32_t retired = frame; retired != 0; retired = frames_[retired].next_of_code) {
      frame_index_.erase(retired);
      frames_[retired].pointer = nullptr;
    }
    // The address may now be given to another code object: keys made before must not match.
    seed_.store(new_seed(), std::memory_order_release);
  }
  for (; frame != 0; frame = frames_[frame].next_of_code) resolve_frame(frames_[frame]);
  std::lock_guard lock(mutex_);
  codes_[id].pointer = nullptr;
  ++dead_codes_;
  if (codes_[id].stacks == 0) unused_codes_.push(codes_, id);
}

void StackTable::resolve() {
  uint32_t ids[kBurst];
  uint32_t next, end;
  {
    std::lock_guard lock(mutex_);
    next = std::min(resolved_frames_, reused_frames_);
    end = frame_count_;
    reused_frames_ = UINT32_MAX;
  }
  // The GIL, held throughout, keeps the code objects alive; destroyed ones were read before.
  while (next < end) {
    uint32_t count = 0;
    {
      std::lock_guard lock(mutex_);  // a hook may use a free place again
      for (const uint32_t stop = std::min(end, next + kBurst); next < stop; ++next) {
        const Frame& frame = frames_[next];
        if (frame.pointer != nullptr && frame.line == kUnresolved) ids[count++] = next;
      }
    }
    for (uint32_t i = 0; i < count; ++i) resolve_frame(frames_[ids[i]]);
  }
  resolved_frames_ = end;
}

bool StackTable::has_stack(uint32_t id) const {
  std::lock_guard lock(mutex_);
  return stacks_.has_walk(id);
}

StackTable::Stats StackTable::stats() const {
  std::lock_guard lock(mutex_);
  const uint64_t frames = frame_count_ - 1 - free_frames_.count;
  const uint64_t codes = code_count_ - 1 - free_codes_.count;
  return {walks_, frames, codes, bytes_, max_bytes_, truncated_, dropped_, freed_};
}

}  // namespace pytracer
