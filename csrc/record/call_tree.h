// One generation of the stack table: a calling-context tree with its frames, code objects and names.
//
// 1. A frame is a place in a code object. A node is a frame and the node of the frames around it: its
//    number is a stack. Links (stack_link.h) are nodes too, inside of frames. Numbers are given out in
//    order, and no other generation has them. A path begins with a base (PathBase), which is a node too.
// 2. Nothing is freed or changes its meaning before the whole tree goes. A code object that is
//    destroyed retires its address: its frames stay, and no walk finds them any more.
// 3. find() and the readers take no lock, and may run on any thread while one thread, under the
//    table's mutex, adds or copies. A miss of find() is never wrong, only slow. Names and lines are read
//    when a frame is added, so that what has been recorded needs nothing of the interpreter any more.
// 4. Bounded by max_bytes; what finds no room gets 0.
// 5. copy() brings a stack over from an older generation. There always is room for it: reserve() has
//    kept as much as the older generation takes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frames/frame_walk.h"
#include "record/stack_link.h"
#include "support/intern_table.h"
#include "support/mix.h"

namespace pytracer {

class CallTree {
 public:
  struct Frame {
    uint64_t hash() const noexcept { return mix(place); }
    uint64_t place;  // the instruction; 0 once the code object is destroyed
    uint32_t code;
    int32_t offset;  // of the instruction, in bytes
    int32_t line;
    uint32_t next;
    uint32_t next_of_code;
    uint32_t copy;  // in the next generation
  };
  struct Code {
    uint64_t hash() const noexcept { return mix(reinterpret_cast<uint64_t>(pointer)); }
    const void* pointer;  // null once the code object is destroyed
    uint32_t next;
    uint32_t newest_frame;
    uint32_t filename;  // names
    uint32_t name;
    uint32_t copy;  // in the next generation
    uint32_t is_engine;  // whether it is the function of torch that calls autograd's engine
  };
  // Nodes are numbered from 1 on within the generation; node 0 is stack 0.
  struct Node {
    uint64_t hash() const noexcept { return path_hash; }
    uint32_t frame;            // or a link; 0: the node is a base
    uint32_t outer_and_flags;  // of a base: its number
    uint32_t next;  // once copied: the node in the next generation
    uint32_t path_hash;
  };
  static constexpr uint32_t kFlags = 1u << 28;  // the lowest one
  static uint32_t outer_of(const Node& node) noexcept {
    return __atomic_load_n(&node.outer_and_flags, __ATOMIC_RELAXED) & (kFlags - 1);
  }
  // `stacks`: those that events have had.
  struct Counts {
    uint64_t stacks, frames, codes, bytes, truncated;
  };

  // The first generation, or a spare one, which begins later. Throws Error or std::bad_alloc.
  CallTree(uint64_t max_bytes, const std::shared_ptr<Box>& box, bool is_spare);
  // `last_stack` is the last number of the generation before. Before any other use.
  void begin_after(uint32_t last_stack) noexcept { base_ = last_stack; }

  // What another process had, from number 1 on. All numbers in it are those of items, or 0.
  struct Rows {
    std::vector<Code> codes;
    std::vector<Frame> frames;
    std::vector<Node> nodes;
    std::vector<std::string> names;
  };
  CallTree(const Rows& rows, uint32_t last_stack);

  // Hooks, without a lock. Gives the memo's entries their nodes, if an event has had this stack. The walk may run
  // a node of autograd if torch's call of the engine is among its frames, or beyond those that were compared.
  bool find(WalkMemo& walk) const noexcept;
  // The same for a link inside of a stack; 0: there is none.
  uint32_t find_link(uint32_t outer, uint32_t link) const noexcept;

  // Under the table's mutex, as all that adds. 0: there is no room. An event has the result.
  uint32_t add(WalkMemo& walk) noexcept;
  uint32_t add_link(uint32_t outer, uint32_t link) noexcept;
  // The number in this generation of a stack of an older one, from which nothing is added any more.
  // No hook looks for anything in `from`.
  uint32_t copy(CallTree& from, uint32_t stack) noexcept;
  void reserve(uint64_t bytes) noexcept { reserved_ = bytes; }
  // Whether less than a part of the bound is left.
  bool has_less_than(uint64_t part) const noexcept {
    return bytes_ + reserved_ + max_bytes_ / part > max_bytes_;
  }

  // Retires the address of a code object. Under the mutex. Returns whether the tree has it.
  bool retire(const void* pointer) noexcept;

  // Any thread, without a lock.
  bool has(uint32_t stack) const noexcept {
    return stack - base_ - 1 < nodes_.count();
  }
  // Under the mutex: the last number, and how many there are.
  uint32_t last_stack() const noexcept { return base_ + nodes_.count(); }
  uint32_t size() const noexcept { return nodes_.count(); }
  // Of a stack of this generation: its innermost frame or link, and the stack around it.
  uint32_t frame_of(uint32_t stack) const noexcept { return nodes_[stack - base_].frame; }
  uint32_t outer(uint32_t stack) const noexcept { return number_of(outer_node(stack - base_)); }
  bool is_used(uint32_t stack) const noexcept { return has_flag(stack - base_, kUsed); }
  // The stack's place among those of the generation, from 1 on.
  uint32_t place_of_stack(uint32_t stack) const noexcept { return stack - base_; }
  // A stack without links, and what they say.
  Backward backward(uint32_t stack) const noexcept;
  // The frames of a stack without links, `depth` at most, and no more than were compared. Throws std::bad_alloc.
  struct Frames {
    std::vector<uint32_t> innermost_first;
    bool is_truncated;  // there were more
  };
  Frames frames(uint32_t stack, uint32_t depth) const;
  // Of a stack that a walk has found: whether its innermost frame is torch's call of autograd's engine.
  bool is_engine(uint32_t stack) const noexcept { return is_engine_frame(frame_of(stack)); }
  const Frame& frame(uint32_t id) const noexcept { return frames_[id]; }
  uint32_t frame_count() const noexcept { return frames_.count(); }  // their numbers begin at 1
  uint32_t filename(const Frame& frame) const noexcept { return codes_[frame.code].filename; }
  uint32_t name(const Frame& frame) const noexcept { return codes_[frame.code].name; }
  std::string_view text(uint32_t name) const noexcept { return names_.at(name); }

  Counts counts() const noexcept {  // under the mutex
    return {used_, frames_.count(), codes_.count(), bytes_, truncated_};
  }

 private:
  enum Flags : uint32_t { kUsed = 1u << 31, kTruncated = 1u << 30, kCopied = 1u << 29, kEngine = kFlags,
                          kMayRunNode = kEngine | kTruncated };
  bool is_engine_frame(uint32_t frame) const noexcept {
    return !StackLink::is_link(frame) && codes_[frames_[frame].code].is_engine != 0;
  }
  uint32_t number_of(uint32_t node) const noexcept { return node != 0 ? base_ + node : 0; }
  uint32_t node_of(uint32_t stack) const noexcept { return stack != 0 ? stack - base_ : 0; }
  uint32_t outer_node(uint32_t node) const noexcept { return outer_of(nodes_[node]); }
  bool has_flag(uint32_t node, Flags flag) const noexcept {
    return (__atomic_load_n(&nodes_[node].outer_and_flags, __ATOMIC_RELAXED) & flag) != 0;
  }
  void add_flags(uint32_t node, uint32_t flags) noexcept;
  // The node around the first of the walk's entries that have none; 0: there is none.
  uint32_t known_node(const WalkMemo& walk) const noexcept {
    if (const uint32_t first = walk.first_unknown()) return walk.entry(first - 1)->node;
    // Nearly all walks that begin anew have one base.
    const uint64_t last = __atomic_load_n(&last_base_, __ATOMIC_RELAXED);
    if (last >> 32 == walk.base()) return static_cast<uint32_t>(last);
    return find_node(walk.base(), 0, PathHash::of_base(walk.base()));
  }
  // Whether a node is that of the walk's innermost frame. Gives the other entries nodes.
  bool holds(uint32_t node, WalkMemo& walk, uint32_t outer) const noexcept;
  bool take(uint64_t bytes) noexcept;  // counts the bytes, if there is room for them
  uint32_t find_node(uint32_t outer, uint32_t frame, uint32_t path_hash) const noexcept;
  uint32_t intern_node(uint32_t outer, uint32_t frame, uint32_t path_hash) noexcept;
  void set_used(uint32_t node, bool is_truncated) noexcept;
  uint32_t intern_frame(uint64_t place, const RawFrame& raw) noexcept;
  uint32_t code_at(const void* pointer) const noexcept;
  uint32_t intern_code(const void* pointer) noexcept;
  uint32_t add_frame(const Frame& frame) noexcept;
  uint32_t copy_frame(CallTree& from, uint32_t frame) noexcept;
  uint32_t copy_code(CallTree& from, uint32_t code) noexcept;

  const uint64_t max_bytes_;
  uint32_t base_;  // the number before that of the first node
  Interner<Code> codes_;
  Interner<Frame> frames_;
  Interner<Node> nodes_;
  InternTable names_;
  uint64_t last_base_ = 0;  // a base that add() had, and its node in the lower half
  uint64_t bytes_ = 0;     // of everything, at most max_bytes_
  uint64_t reserved_ = 0;  // for copies
  uint64_t used_ = 0, truncated_ = 0;
  NameBuffer filename_, name_;

 public:
  static constexpr uint64_t kStackBytes = Interner<Node>::kItemBytes;  // what a node takes
};

}  // namespace pytracer
