#include "stack_table.h"

#include <algorithm>

namespace pytracer {

namespace {

// How many of a kind fit the bound, were there nothing else. Address space, not memory.
template <class Item>
uint32_t most(uint64_t max_bytes) noexcept {
  return static_cast<uint32_t>(std::min<uint64_t>(max_bytes / sizeof(Item) + 2, 1u << 30));
}

// What the names of a code object are taken to need until they are read.
constexpr uint64_t kNameBytes = 256;
constexpr int32_t kUnresolved = INT32_MIN;

uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 32);
}
uint64_t hash_code(const void* pointer) noexcept {
  return mix(1, reinterpret_cast<uint64_t>(pointer));
}
uint64_t hash_frame(uint32_t code, int32_t offset) noexcept {
  return mix(mix(2, code), static_cast<uint32_t>(offset));
}

}  // namespace

uint64_t StackTable::CodeItems::hash(uint32_t id) const noexcept {
  return hash_code(table.codes_[id].pointer);
}
uint64_t StackTable::FrameItems::hash(uint32_t id) const noexcept {
  return hash_frame(table.frames_[id].code, table.frames_[id].offset);
}

StackTable::StackTable(uint64_t max_bytes)
    : max_bytes_(max_bytes),
      codes_(most<Code>(max_bytes)),
      frames_(most<Frame>(max_bytes)),
      stacks_(most<Stack>(max_bytes)),
      frame_lists_(most<uint32_t>(max_bytes) + kMaxStackDepth),
      code_index_(code_items_, most<Code>(max_bytes)),
      frame_index_(frame_items_, most<Frame>(max_bytes)),
      stack_index_(stack_items_, most<Stack>(max_bytes)),
      strings_(2 * size_t{most<Code>(max_bytes)} + 2) {
  intern_string({});  // string 0: a name that was not read
}

uint64_t StackTable::bytes() const noexcept {
  return code_count_ * sizeof(Code) + frame_count_ * sizeof(Frame) +
         stack_count_ * sizeof(Stack) + list_length_ * sizeof(uint32_t) + code_index_.bytes() +
         frame_index_.bytes() + stack_index_.bytes() + cache_.bytes() + string_bytes_ +
         (code_count_ - named_codes_) * kNameBytes;
}

uint32_t StackTable::intern_code(const void* pointer) {
  const uint32_t known = code_index_.find(
      hash_code(pointer), [&](uint32_t id) { return codes_[id].pointer == pointer; });
  if (known != 0) return known;
  const uint32_t id = code_count_++;
  codes_[id] = {pointer, 0, 0, 0, 0, false};
  code_index_.insert(id);
  return id;
}

uint32_t StackTable::intern_frame(const RawFrame& raw) {
  const uint32_t code = intern_code(raw.code);
  const uint32_t known = frame_index_.find(hash_frame(code, raw.offset), [&](uint32_t id) {
    return frames_[id].code == code && frames_[id].offset == raw.offset;
  });
  if (known != 0) return known;
  const uint32_t id = frame_count_++;
  frames_[id] = {code, raw.offset, kUnresolved, 0, codes_[code].newest_frame};
  codes_[code].newest_frame = id;
  frame_index_.insert(id);
  return id;
}

uint32_t StackTable::intern(const RawFrame* raw, const Walk& walk, const WalkKey& key) noexcept {
  std::lock_guard lock(mutex_);
  // What a stack of only new frames in only new code takes.
  const uint64_t needed =
      sizeof(Stack) + 4 + walk.frames * (sizeof(Code) + sizeof(Frame) + 12 + kNameBytes);
  if (bytes() + needed > max_bytes_) {
    ++dropped_;
    return 0;
  }
  const uint32_t first = list_length_;
  uint64_t hash = mix(3, walk.truncated);
  for (uint32_t i = 0; i < walk.frames; ++i) {
    const uint32_t frame = intern_frame(raw[i]);
    frame_lists_[first + i] = frame;
    hash = mix(hash, frame);
  }
  const uint32_t known = stack_index_.find(hash, [&](uint32_t id) {
    const Stack& stack = stacks_[id];
    return stack.hash == hash && stack.frames == walk.frames && stack.truncated == walk.truncated &&
           std::equal(&frame_lists_[first], &frame_lists_[first] + walk.frames,
                      &frame_lists_[stack.first_frame]);
  });
  uint32_t id = known;
  if (known == 0) {
    id = stack_count_++;
    list_length_ += walk.frames;
    truncated_ += walk.truncated;
    stacks_[id] = {hash, first, 0, static_cast<uint16_t>(walk.frames), walk.truncated};
    stack_index_.insert(id);
  }
  if (walk.keyed) {
    if (bytes() + cache_.growth(stack_count_) <= max_bytes_) cache_.reserve(stack_count_);
    cache_.insert(key, id);
  }
  return id;
}

uint32_t StackTable::intern_string(std::string text) {
  const auto known = string_ids_.find(text);
  if (known != string_ids_.end()) return known->second;
  const uint64_t needed = text.size() + sizeof(std::string) + 64;  // with its node in the map
  if (bytes() + needed > max_bytes_) return 0;
  const uint32_t id = string_count_++;
  string_bytes_ += needed;
  strings_[id] = &string_ids_.emplace(std::move(text), id).first->first;
  return id;
}

void StackTable::name_code(Code& code) {
  if (code.named) return;
  code.named = true;
  ++named_codes_;
  code.filename = intern_string(code_filename(code.pointer));
  code.name = intern_string(code_name(code.pointer));
}

void StackTable::resolve_frame(Frame& frame) noexcept {
  if (frame.line != kUnresolved) return;
  frame.line = code_line(codes_[frame.code].pointer, frame.offset);
}

void StackTable::code_destroyed(const void* pointer) noexcept {
  std::lock_guard lock(mutex_);
  const uint32_t id = code_index_.find(
      hash_code(pointer), [&](uint32_t code) { return codes_[code].pointer == pointer; });
  if (id == 0) return;
  Code& code = codes_[id];
  try {
    name_code(code);
  } catch (const std::bad_alloc&) {
    // The names stay empty: string 0.
  }
  for (uint32_t frame = code.newest_frame; frame != 0; frame = frames_[frame].next_of_code) {
    resolve_frame(frames_[frame]);
  }
  code_index_.erase(id);
  code.pointer = nullptr;
  // From now on this address means another code object: keys made before must not match.
  seed_.fetch_add(1, std::memory_order_release);
}

void StackTable::resolve() {
  // In short turns: a hook that meets a new stack meanwhile waits for one of them at most. The GIL,
  // held all the time, keeps the code objects alive.
  constexpr uint32_t kTurn = 64;
  for (;;) {
    std::lock_guard lock(mutex_);
    const uint32_t end = std::min(frame_count_, resolved_frames_ + kTurn);
    for (; resolved_frames_ < end; ++resolved_frames_) {
      Frame& frame = frames_[resolved_frames_];
      Code& code = codes_[frame.code];
      if (code.pointer == nullptr) continue;  // done when it went
      name_code(code);
      resolve_frame(frame);
    }
    if (resolved_frames_ == frame_count_) return;
  }
}

StackTable::Stats StackTable::stats() const {
  std::lock_guard lock(mutex_);
  return {stack_count_ - 1ull, frame_count_ - 1ull, code_count_ - 1ull, bytes(),
          max_bytes_,          truncated_,          dropped_};
}

}  // namespace pytracer
