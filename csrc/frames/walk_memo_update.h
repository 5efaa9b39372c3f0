// How a WalkMemo takes in a walk. Part of walk_memo.h, which includes this file.
#pragma once

#include "frames/walk_memo.h"

namespace pytracer {

template <class Access>
inline WalkMemo::Change WalkMemo::update(const typename Access::FramePointer innermost,
                                         uint32_t depth) noexcept {
  uint32_t added = 0;
  auto frame = innermost;
  Entry* top = find(frame);
  for (; top == nullptr; top = find(frame)) {
    frame = Access::outer(frame);
    if (frame == nullptr || ++added == depth) return Change::too_much;
  }
  const uint32_t size = static_cast<uint32_t>(top - entries_) + 1 + added;
  Entry* const bottom = size > depth ? entries_ + (size - depth) : entries_;
  replaced_ = {top->instruction, top->code};
  Entry* changed = top + 1;
  for (Entry* entry = top;; --entry) {
    if (!holds<Access>(*entry, frame)) {
      note<Access>(*entry, frame);
      changed = entry;
    }
    if (entry == bottom) break;
    const auto outer = predicted<Access>(entry[-1].frame);
    if (Access::outer(frame) != outer) return Change::too_much;
    frame = outer;
  }
  truncated_ = Access::outer(frame) != nullptr;
  if ((truncated_ && size < depth) || size > kCapacity) return Change::too_much;
  if (changed > top && added == 0) {
    size_ = size;
    return Change::none;
  }
  if (changed == top && added == 0 && size == size_) return Change::innermost;
  frame = innermost;
  for (Entry* entry = entries_ + size - 1; entry > top; --entry, frame = Access::outer(frame)) {
    note<Access>(*entry, frame);
  }
  extend(changed, size);
  return Change::some;
}

template <class Access>
inline void WalkMemo::start_over(const typename Access::FramePointer innermost,
                                 uint32_t depth) noexcept {
  const uint32_t most = depth + std::min(depth, kSlack);
  uint32_t size = 0;
  for (auto frame = innermost; frame != nullptr && size < most; frame = Access::outer(frame)) {
    ++size;
  }
  auto frame = innermost;
  for (uint32_t i = size; i-- > 0; frame = Access::outer(frame)) note<Access>(entries_[i], frame);
  truncated_ = size > depth;
  extend(entries_, size);
}

template <class Access>
inline bool WalkMemo::exchange(bool is_alike) noexcept {
  Entry& innermost = entries_[size_ - 1];
  const Other last{replaced_, innermost.hash, stack};
  const bool is_known =
      is_alike && has_other_ && innermost.instruction == other_.place.instruction &&
      (Access::kInstructionsAreUnique || innermost.code == other_.place.code);
  if (is_known) {
    innermost.hash = other_.hash;
    stack = other_.stack;
  } else {
    extend(&innermost, size_);
  }
  other_ = last;
  return is_known;
}

}  // namespace pytracer
