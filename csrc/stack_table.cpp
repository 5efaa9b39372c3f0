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
  strings_[0] = &string_ids_.emplace(std::string(), 0).first->first;  // a name that was not read
}

uint64_t StackTable::new_seed() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

uint64_t StackTable::bytes() const noexcept {
  const uint64_t unnamed = code_count_ - named_codes_.load(std::memory_order_relaxed);
  return code_count_ * sizeof(Code) + frame_count_ * sizeof(Frame) +
         stack_count_ * sizeof(Stack) + list_length_ * sizeof(uint32_t) + code_index_.bytes() +
         frame_index_.bytes() + stack_index_.bytes() + cache_.bytes() +
         string_bytes_.load(std::memory_order_relaxed) + unnamed * kNameBytes;
}

bool StackTable::has_room(uint64_t needed) const noexcept {
  return bytes() + needed <= max_bytes_;
}

uint32_t StackTable::intern_code(const void* pointer) noexcept {
  const uint32_t known = code_index_.find(
      hash_code(pointer), [&](uint32_t id) { return codes_[id].pointer == pointer; });
  if (known != 0 || !has_room(sizeof(Code) + sizeof(uint32_t) + kNameBytes)) return known;
  const uint32_t id = code_count_++;
  codes_[id] = {pointer, 0, 0, 0, 0, false};
  code_index_.insert(id);
  return id;
}

uint32_t StackTable::intern_frame(const RawFrame& raw) noexcept {
  const uint32_t code = intern_code(raw.code);
  if (code == 0) return 0;
  const uint32_t known = frame_index_.find(hash_frame(code, raw.offset), [&](uint32_t id) {
    return frames_[id].code == code && frames_[id].offset == raw.offset;
  });
  if (known != 0 || !has_room(sizeof(Frame) + sizeof(uint32_t))) return known;
  const uint32_t id = frame_count_++;
  frames_[id] = {code, raw.offset, kUnresolved, 0, codes_[code].newest_frame};
  codes_[code].newest_frame = id;
  frame_index_.insert(id);
  return id;
}

uint32_t StackTable::intern(const RawFrame* raw, const Walk& walk, const WalkKey& key) noexcept {
  std::lock_guard lock(mutex_);
  // Behind the lists in use: where the new one stays, if it is new.
  const uint32_t first = list_length_;
  uint64_t hash = mix(3, walk.truncated);
  for (uint32_t i = 0; i < walk.frames; ++i) {
    const uint32_t frame = intern_frame(raw[i]);
    if (frame == 0) {
      ++dropped_;
      return 0;
    }
    frame_lists_[first + i] = frame;
    hash = mix(hash, frame);
  }
  uint32_t id = stack_index_.find(hash, [&](uint32_t known) {
    const Stack& stack = stacks_[known];
    return stack.hash == hash && stack.frames == walk.frames && stack.truncated == walk.truncated &&
           std::equal(&frame_lists_[first], &frame_lists_[first] + walk.frames,
                      &frame_lists_[stack.first_frame]);
  });
  if (id == 0) {
    if (!has_room(sizeof(Stack) + sizeof(uint32_t) * (1 + walk.frames))) {
      ++dropped_;
      return 0;
    }
    id = stack_count_++;
    list_length_ += walk.frames;
    truncated_ += walk.truncated;
    stacks_[id] = {hash, first, 0, static_cast<uint16_t>(walk.frames), walk.truncated};
    stack_index_.insert(id);
  }
  if (walk.keyed) {
    if (has_room(cache_.growth(stack_count_))) cache_.reserve(stack_count_);
    cache_.insert(key, id);
  }
  return id;
}

uint32_t StackTable::intern_string(std::string text) {
  const auto known = string_ids_.find(text);
  if (known != string_ids_.end()) return known->second;
  const uint64_t needed = text.size() + sizeof(std::string) + 64;  // with its node in the map
  {
    std::lock_guard lock(mutex_);
    if (!has_room(needed)) return 0;
    string_bytes_.fetch_add(needed, std::memory_order_relaxed);
  }
  const uint32_t id = string_count_++;
  strings_[id] = &string_ids_.emplace(std::move(text), id).first->first;
  return id;
}

void StackTable::resolve_frame(Frame& frame) {
  Code& code = codes_[frame.code];
  if (!code.named) {
    code.named = true;
    named_codes_.fetch_add(1, std::memory_order_relaxed);  // before its strings are counted
    code.filename = intern_string(code_filename(code.pointer));
    code.name = intern_string(code_name(code.pointer));
  }
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
    code_index_.erase(id);
    // From now on this address means another code object: keys made before must not match.
    seed_.store(new_seed(), std::memory_order_release);
  }
  for (; frame != 0; frame = frames_[frame].next_of_code) {
    try {
      resolve_frame(frames_[frame]);
    } catch (const std::bad_alloc&) {
      // The names stay empty.
    }
  }
  codes_[id].pointer = nullptr;
}

void StackTable::resolve() {
  uint32_t end;
  {
    std::lock_guard lock(mutex_);
    end = frame_count_;
  }
  // The GIL, held all the time, keeps the code objects alive; those that went were read then.
  for (; resolved_frames_ < end; ++resolved_frames_) {
    Frame& frame = frames_[resolved_frames_];
    if (codes_[frame.code].pointer != nullptr) resolve_frame(frame);
  }
}

StackTable::Stats StackTable::stats() const {
  std::lock_guard lock(mutex_);
  return {stack_count_ - 1ull, frame_count_ - 1ull, code_count_ - 1ull, bytes(),
          max_bytes_,          truncated_,          dropped_};
}

}  // namespace pytracer
