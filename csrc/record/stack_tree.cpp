#include "record/stack_tree.h"

#include <algorithm>

namespace pytracer {

uint32_t StackTree::add(uint32_t outer, uint32_t frame, bool truncated) noexcept {
  uint32_t id = place_;
  if (id != 0) {
    place_ = stacks_[id].next;
    --places_;
  } else {
    id = end_++;
  }
  const auto frames = static_cast<uint16_t>(stacks_[outer].frames + 1);
  stacks_[id] = {frame, outer, 0, frames, truncated, static_cast<uint8_t>(kUsed | (mark_ ^ kMark))};
  index_.insert(id);
  return id;
}

StackTree::Swept StackTree::sweep(uint32_t most) noexcept {
  Swept swept{};
  const uint32_t stop = static_cast<uint32_t>(std::min<uint64_t>(end_, uint64_t{swept_} + most));
  for (; swept_ < stop; ++swept_) {
    Stack& stack = stacks_[swept_];
    if ((stack.state & kUsed) == 0 || is_marked(stack)) continue;
    if ((stack.state & kKept) != 0) {
      stack.state ^= kMark;
      continue;
    }
    index_.erase(swept_);
    if ((stack.state & kWalk) != 0) {
      ++swept.walks;
      swept.truncated += stack.truncated;
    }
    stack.state = 0;
    if (freed_ == 0) first_freed_ = swept_;
    stack.next = freed_;
    freed_ = swept_;
    ++freed_count_;
  }
  swept.done = swept_ >= end_;
  if (swept.done && freed_ != 0) {
    stacks_[first_freed_].next = place_;
    place_ = freed_;
    places_ += freed_count_;
    freed_ = freed_count_ = 0;
  }
  return swept;
}

}  // namespace pytracer
