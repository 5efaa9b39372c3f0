#include "record/stack_tree.h"

#include <algorithm>

namespace pytracer {

StackTree::Swept StackTree::sweep(uint32_t most) noexcept {
  Swept swept{};
  const uint32_t stop = static_cast<uint32_t>(std::min<uint64_t>(end_, uint64_t{swept_} + most));
  for (; swept_ < stop; ++swept_) {
    Stack& stack = stacks_[swept_];
    if ((stack.state & kUsed) == 0 || is_marked(stack)) continue;
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
