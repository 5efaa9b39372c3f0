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

// What a string costs besides its characters: itself, and its node in the map.
constexpr uint64_t kStringBytes = sizeof(std::string) + 64;
// The room that is reserved for the two names of a code object until they are read.
constexpr uint64_t kNameBytes = 2 * kStringBytes + 256;
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
      codes_(max_items<Code>(max_bytes)),
      frames_(max_items<Frame>(max_bytes)),
      stacks_(max_items<Stack>(max_bytes)),
      frame_lists_(max_items<uint32_t>(max_bytes) + kMaxStackDepth),
      code_index_(code_items_, max_items<Code>(max_bytes)),
      frame_index_(frame_items_, max_items<Frame>(max_bytes)),
      stack_index_(stack_items_, max_items<Stack>(max_bytes)),
      strings_(2 * size_t{max_items<Code>(max_bytes)} + 2) {
  strings_[0] = &string_ids_.emplace(std::string(), 0).first->first;  // a name that was not read
}

uint64_t StackTable::new_seed() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

uint64_t StackTable::bytes() const noexcept {
  const uint64_t unnamed = code_count_ - named_codes_;
  return code_count_ * sizeof(Code) + frame_count_ * sizeof(Frame) +
         stack_count_ * sizeof(Stack) + list_length_ * sizeof(uint32_t) + code_index_.bytes() +
         frame_index_.bytes() + stack_index_.bytes() + cache_.bytes() +
         string_bytes_ + unnamed * kNameBytes;
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
  // The list is written behind those in use, where it stays if the stack is new.
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
  const uint32_t id = string_count_++;
  strings_[id] = &string_ids_.emplace(std::move(text), id).first->first;
  return id;
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
  const auto cost = [this](const std::string& text) -> uint64_t {
    return string_ids_.count(text) != 0 ? 0 : text.size() + kStringBytes;
  };
  const uint64_t filename_bytes = cost(filename);
  const uint64_t name_bytes = name == filename ? 0 : cost(name);
  {
    // The kNameBytes that intern_code() reserved are exchanged for the bytes of the names under one
    // lock. Otherwise a hook on another thread could take that room in between.
    std::lock_guard lock(mutex_);
    ++named_codes_;
    if (has_room(filename_bytes)) {
      string_bytes_ += filename_bytes;
    } else {
      if (name == filename) name.clear();
      filename.clear();
    }
    if (has_room(name_bytes)) {
      string_bytes_ += name_bytes;
    } else {
      name.clear();
    }
  }
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
    code_index_.erase(id);
    // The address may now be given to another code object: keys made before must not match.
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
  // The GIL, held throughout, keeps the code objects alive; destroyed ones were read before.
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
