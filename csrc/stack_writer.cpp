#include "stack_writer.h"

#include <algorithm>

namespace pytracer {

void StackWriter::frames(uint32_t stack) {
  Memo& memo = memo_of(stack_memos_, stack);
  if (memo != 0) return out_.recall(memo);
  const StackTable::Stack none{};
  const StackTable::Stack& kept = stack != 0 ? stacks_->stack(stack) : none;
  const uint32_t count = std::min<uint32_t>(kept.frames, depth_);
  std::pair<uint64_t, uint64_t> hash{1, count};
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t number = number_of(stacks_->frame_id(kept, i));
    hash.first = (hash.first ^ number) * 0x9e3779b97f4a7c15ull;
    hash.second = (hash.second + number) * 0xc2b2ae3d27d4eb4full;
  }
  const auto [same, is_new] = written_stacks_.emplace(hash, 0);
  if (!is_new) {
    memo = same->second;
    return out_.recall(memo);
  }
  out_.empty_list();
  memo = same->second = out_.remember();
  if (count == 0) return;
  truncated_ += kept.truncated || count < kept.frames;
  out_.mark();
  for (uint32_t i = 0; i < count; ++i) frame(stacks_->frame_id(kept, i));
  out_.append_items();
}

// Places in code that read the same, an instruction and the next one of its line, are one frame.
uint32_t StackWriter::number_of(uint32_t id) {
  uint32_t& number = memo_of(frame_numbers_, id);
  if (number == 0) {
    const StackTable::Frame& kept = stacks_->frame(id);
    const auto key = std::tuple(stacks_->filename(kept), stacks_->name(kept), kept.line);
    number = numbers_.emplace(key, static_cast<uint32_t>(numbers_.size() + 1)).first->second;
  }
  return number;
}

void StackWriter::frame(uint32_t id) {
  Memo& memo = memo_of(frame_memos_, number_of(id));
  if (memo != 0) return out_.recall(memo);
  const StackTable::Frame& kept = stacks_->frame(id);
  out_.dict();
  out_.key(filename_);
  text(stacks_->filename(kept));
  out_.key(name_);
  text(stacks_->name(kept));
  out_.key(line_);
  out_.integer(kept.line);
  out_.set_items();
  memo = out_.remember();
}

void StackWriter::text(uint32_t string) {
  Memo& memo = memo_of(string_memos_, string);
  if (memo != 0) return out_.recall(memo);
  out_.string(stacks_->string(string));
  memo = out_.remember();
}

}  // namespace pytracer
