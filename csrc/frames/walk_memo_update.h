// How a WalkMemo takes in a walk. Part of walk_memo.h, which includes this file.
#pragma once

#include "frames/walk_memo.h"

namespace pytracer {

template <class Access>
inline bool WalkMemo::outer_frames_are_same(typename Access::FramePointer frame) const noexcept {
  const Entry* entry = innermost_;
  const Entry* const bottom = outermost_;
  const auto is_same = [&](const Entry& noted) {
    const auto outer = predicted<Access>(noted.frame);
    if (Access::outer(frame) != outer || noted.place != Access::place(outer)) return false;
    frame = outer;
    return true;
  };
  // Four frames at a time: with a loop for each frame, this comparison takes twice as long.
  for (const Entry* const fourth = bottom + 4; entry >= fourth; entry -= 4) {
    if (!is_same(entry[-1]) || !is_same(entry[-2]) || !is_same(entry[-3]) || !is_same(entry[-4])) {
      return false;
    }
  }
  for (; entry != bottom; --entry) {
    if (!is_same(entry[-1])) return false;
  }
  return (Access::outer(frame) != nullptr) == truncated_;
}

template <class Access>
uint32_t WalkMemo::take_in(typename Access::FramePointer innermost, uint32_t depth,
                           uint64_t seed) noexcept {
  const bool may_hold = depth == depth_ && seed == seed_;
  depth_ = depth;
  seed_ = seed;
  if (!may_hold || !update<Access>(innermost)) start_over<Access>(innermost);
  return kUnknownStack;
}

template <class Access>
inline bool WalkMemo::update(const typename Access::FramePointer innermost) noexcept {
  const uint32_t depth = depth_;
  if (size_ != 0) {
    Entry& last = entries_[size_ - 1];
    last.place = tops_[last_].place;
    last.hash = tops_[last_].hash;
    last.node = tops_[last_].node;
  }
  uint32_t added = 0;
  auto frame = innermost;
  Entry* top = find(frame);
  for (; top == nullptr; top = find(frame)) {
    frame = Access::outer(frame);
    if (frame == nullptr || ++added == depth) return false;
  }
  const uint32_t size = static_cast<uint32_t>(top - entries_) + 1 + added;
  Entry* const bottom = size > depth ? entries_ + (size - depth) : entries_;
  Entry* changed = top + 1;
  for (Entry* entry = top;; --entry) {
    if (entry->place != Access::place(frame)) {
      note<Access>(*entry, frame);
      changed = entry;
    }
    if (entry == bottom) break;
    const auto outer = predicted<Access>(entry[-1].frame);
    if (Access::outer(frame) != outer) return false;
    frame = outer;
  }
  // The entries outside of the compared ones have to stand for frames if there are any, and for none
  // if there are none.
  const bool has_more = Access::outer(frame) != nullptr;
  const bool has_more_entries = bottom != entries_ || is_cut_;
  if (has_more != has_more_entries || (has_more && size < depth) || size > kCapacity) return false;
  truncated_ = has_more;
  frame = innermost;
  for (Entry* entry = entries_ + size - 1; entry > top; --entry, frame = Access::outer(frame)) {
    note<Access>(*entry, frame);
  }
  extend(std::min(static_cast<uint32_t>(changed - entries_), size - 1), size);
  return true;
}

template <class Access>
inline void WalkMemo::start_over(const typename Access::FramePointer innermost) noexcept {
  const uint32_t most = depth_ + std::min(depth_, kSlack);
  uint32_t size = 0;
  auto frame = innermost;
  for (; frame != nullptr && size < most; frame = Access::outer(frame)) ++size;
  is_cut_ = frame != nullptr;
  truncated_ = size > depth_;
  frame = innermost;
  for (uint32_t i = size; i-- > 0; frame = Access::outer(frame)) note<Access>(entries_[i], frame);
  extend(0, size);
}

}  // namespace pytracer
