// The stacks of a StackTable, which share their callers, and how unused stacks are freed.
//
// 1. A stack is a frame and the stack of the frames around it (`outer`), interned from the
//    outermost frame inwards. Ids are places in an array; find(), add() and stack() take constant
//    time. A link (stack_link.h) in the place of a frame adds what is known of an autograd node.
// 2. A collection has two parts. unmark_all() makes every stack unmarked, and mark() marks a stack
//    with its callers. sweep() then frees the stacks that are still unmarked. Outside a
//    collection every stack is marked. Until a sweep begins, a marked stack has marked callers.
// 3. The place of a freed stack is used again only after the sweep has ended. Until then a stack
//    that is not yet swept may name a freed one as its caller.
// 4. Not thread-safe: the table's mutex covers it. Only frame, outer, frames and truncated of a
//    stack may be read without the mutex, as long as the stack cannot be freed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "record/stack_link.h"
#include "support/id_list.h"
#include "support/linear_hash.h"
#include "support/reserved_array.h"

namespace pytracer {

class StackTree {
 public:
  struct Stack {
    uint32_t frame;  // the innermost one, or a link
    uint32_t outer;  // the stack of the other frames; 0: there are none
    uint32_t next;
    uint16_t frames;
    bool truncated;  // there were more frames than stack_depth
    uint8_t state;   // bits of StackTree's own
  };
  // What a stack takes, with its bucket in the index.
  static constexpr uint64_t kStackBytes = sizeof(Stack) + sizeof(uint32_t);

  explicit StackTree(uint32_t max_stacks) : stacks_(max_stacks), index_(items_, max_stacks) {}

  const Stack& stack(uint32_t id) const noexcept { return stacks_[id]; }
  // 0: there is no such stack.
  uint32_t find(uint32_t outer, uint32_t frame, bool truncated) const noexcept {
    return index_.find(hash_of(outer, frame), [&](uint32_t id) {
      const Stack& stack = stacks_[id];
      return stack.outer == outer && stack.frame == frame && stack.truncated == truncated;
    });
  }
  // Adds an unmarked stack: mark() has to follow.
  uint32_t add(uint32_t outer, uint32_t frame, bool truncated) noexcept;
  // Whether an event may have this stack; others are only callers.
  bool has_walk(uint32_t id) const noexcept {
    return id < end_ && (stacks_[id].state & kWalk) != 0;
  }
  // Notes that an event has this stack. True for the first time.
  bool set_walk(uint32_t id) noexcept {
    const bool is_new = (stacks_[id].state & kWalk) == 0;
    stacks_[id].state |= kWalk;
    return is_new;
  }

  void unmark_all() noexcept {
    mark_ ^= kMark;
    swept_ = 1;
  }
  // Returns how many stacks were not marked before.
  uint32_t mark(uint32_t id) noexcept {
    uint32_t marked = 0;
    for (; id != 0 && !is_marked(stacks_[id]); id = stacks_[id].outer, ++marked) {
      stacks_[id].state ^= kMark;
      // A forward stack has frames alone, so this call calls no other.
      if (const uint32_t forward = StackLink::forward_of(stacks_[id].frame)) marked += mark(forward);
    }
    return marked;
  }
  struct Swept {
    bool done;
    uint32_t walks, truncated;  // how many of the freed stacks an event may have had
  };
  // Looks at `most` stacks at most, and calls `freed` with the frame or link of each that it frees.
  template <class Freed>
  Swept sweep(uint32_t most, const Freed& freed) noexcept;

  uint32_t end() const noexcept { return end_; }        // all ids are below
  uint32_t places() const noexcept { return places_.count; }  // that freed stacks left for new ones
  uint64_t bytes() const noexcept { return index_.bytes(); }  // of an empty tree

 private:
  enum State : uint8_t {
    kUsed = 1,
    kWalk = 2,  // an event may have it; other stacks are only callers
    kMark = 4,  // marked, if this bit is as in mark_
  };
  struct Items {
    StackTree& tree;
    uint64_t hash(uint32_t id) const noexcept {
      return hash_of(tree.stacks_[id].outer, tree.stacks_[id].frame);
    }
    uint32_t& next(uint32_t id) noexcept { return tree.stacks_[id].next; }
  } items_{*this};
  static uint64_t hash_of(uint32_t outer, uint32_t frame) noexcept {
    const uint64_t mixed = (uint64_t{outer} << 32 ^ frame) * 0x9e3779b97f4a7c15ull;
    return mixed ^ (mixed >> 32);
  }
  bool is_marked(const Stack& stack) const noexcept { return ((stack.state ^ mark_) & kMark) == 0; }

  ReservedArray<Stack> stacks_;  // [0] is not used
  LinearHash<Items> index_;
  uint32_t end_ = 1;
  uint8_t mark_ = 0;
  uint32_t swept_ = 1;  // the next stack that sweep() looks at
  IdList freed_;  // by this sweep
  uint32_t first_freed_ = 0;
  IdList places_;  // that earlier sweeps have freed
};

inline uint32_t StackTree::add(uint32_t outer, uint32_t frame, bool truncated) noexcept {
  const uint32_t id = places_.place(stacks_, end_);
  const auto frames = static_cast<uint16_t>(stacks_[outer].frames + !StackLink::is_link(frame));
  stacks_[id] = {frame, outer, 0, frames, truncated, static_cast<uint8_t>(kUsed | (mark_ ^ kMark))};
  index_.insert(id);
  return id;
}

template <class Freed>
StackTree::Swept StackTree::sweep(uint32_t most, const Freed& freed) noexcept {
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
    freed(stack.frame);
    stack.state = 0;
    if (freed_.count == 0) first_freed_ = swept_;
    freed_.push(stacks_, swept_);
  }
  swept.done = swept_ >= end_;
  if (swept.done && freed_.count != 0) {
    stacks_[first_freed_].next = places_.first;
    places_ = {freed_.first, places_.count + freed_.count};
    freed_ = {};
  }
  return swept;
}

}  // namespace pytracer
