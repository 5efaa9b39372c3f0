// The frames of a thread's last walk, with the node of each in the calling-context tree, so that the next
// walk looks up only the frames that changed.
//
// 1. One thread uses a memo at a time. Entries are compared with the thread's frames and never
//    dereferenced: a frame is read only because the thread state or its callee points to it. So
//    every walk is exact, whatever the memo held before, even another thread's frames.
// 2. A walk compares the innermost `depth` frames. The memo may have noted more: those further out
//    are as they were when they were compared last. So a node's path is exact in its innermost
//    `depth` frames alone. The base of the path, around the outermost frame, says so.
// 3. Nodes hold under one seed. The table changes it whenever a node may mean other frames.
// 4. Bounded: kCapacity entries. Only as many entries as the deepest walk needs are ever touched.
// 5. A loop often allocates and frees by turns, on two lines of one function. So the memo keeps the
//    innermost frame's last two instructions, each with its node.
//
// Why a memo is faster than looking at each frame: the processor predicts that the next frame is the
// noted one, so it reads several frames at once instead of waiting for each link.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pytracer {

constexpr uint32_t kMaxStackDepth = 1024;
constexpr uint32_t kUnknownStack = UINT32_MAX;

// What a path in the calling-context tree begins with, as a number of 12 bits, not 0.
class PathBase {
 public:
  static uint32_t number(uint32_t depth, bool is_cut) noexcept { return depth | (is_cut ? kCut : 0); }
  static uint32_t depth(uint32_t base) noexcept { return base & (kCut - 1); }
  static bool is_cut(uint32_t base) noexcept { return base >= kCut; }  // frames are missing there

 private:
  static constexpr uint32_t kCut = 1u << 11;
};

// The hash of a path, outermost frame first. `place` is a frame's instruction, or what stands in the
// place of one.
class PathHash {
 public:
  static uint32_t of_base(uint32_t base) noexcept { return extended(0, base); }
  static uint32_t extended(uint32_t outer, uint64_t place) noexcept {
    place *= 0xd6e8feb86659fd93ull;
    return outer * 0x9e3779b5u + static_cast<uint32_t>(place ^ place >> 32);
  }
};

class WalkMemo {
 public:
  static constexpr uint32_t kSlack = 16;  // frames noted beyond `depth`, for calls that return
  static constexpr uint32_t kCapacity = kMaxStackDepth + 4 * kSlack;

  // The stack of the innermost `depth` frames, at least one; `innermost` is not null. The memo has it if
  // frames, depth and seed equal those of the last walk, or those of the walk before the last one, and
  // these two walks differ in the innermost instruction alone. With `is_same_call`, only the innermost
  // frame is compared with the last walk's. Otherwise the result is kUnknownStack, and the nodes from
  // first_unknown() on have to be set.
  // `Access` reads frames: FramePointer, outer(), and place(), which no two instructions of live
  // code objects share.
  template <class Access>
  uint32_t find(typename Access::FramePointer innermost, uint32_t depth, uint64_t seed,
                bool is_same_call) noexcept {
    if (depth != depth_ || seed != seed_ || innermost_->frame != innermost) {
      return take_in<Access>(innermost, depth, seed);
    }
    const uint64_t place = Access::place(innermost);
    const Top& last = tops_[last_];
    if (is_same_call && last.place == place && last.stack != kUnknownStack) return last.stack;
    if (!outer_frames_are_same<Access>(innermost)) return take_in<Access>(innermost, depth, seed);
    if (last.place == place) return last.stack;
    last_ ^= 1;
    if (tops_[last_].place != place) note_top(place);
    return tops_[last_].stack;
  }

  // Of the last walk: the entries, outermost first. Those before first_unknown() have nodes; the others
  // are of this walk, so their frames may be read. The innermost one, the top, is set by set_stack().
  uint64_t seed() const noexcept { return seed_; }
  bool is_truncated() const noexcept { return truncated_; }  // there are more than `depth` frames
  uint32_t base() const noexcept { return PathBase::number(depth_, is_cut_); }
  uint32_t size() const noexcept { return size_; }
  uint32_t first_unknown() const noexcept { return first_unknown_; }
  struct Entry {
    const void* frame;
    uint64_t place;  // of the top: unspecified, as all that follows
    uint32_t hash;   // of the path from the outermost entry to this one
    uint32_t node;   // in the tree of the seed
  };
  Entry* entry(uint32_t i) noexcept { return entries_ + i; }
  const Entry* entry(uint32_t i) const noexcept { return entries_ + i; }
  uint64_t top_place() const noexcept { return tops_[last_].place; }
  uint32_t top_hash() const noexcept { return tops_[last_].hash; }
  void set_stack(uint32_t stack, uint32_t node, bool may_run_node) noexcept {
    tops_[last_].stack = stack;
    tops_[last_].node = node;
    tops_[last_].may_run_node = may_run_node;
  }
  // As it was given to set_stack() for the last walk's stack.
  bool may_run_node() const noexcept { return tops_[last_].may_run_node; }

  // The next walk notes all frames anew.
  void start_afresh() noexcept {
    size_ = 0;
    innermost_ = &kNone;
  }
  // Prepares the memo for another thread.
  void forget() noexcept {
    start_afresh();
    lasting_thread_state = nullptr;
  }

  // The number of the last walk's node, or kUnknownStack.
  uint32_t stack() const noexcept { return tops_[last_].stack; }

  // The thread's PyThreadState, if it lives as long as there are walks; null: unknown.
  void* lasting_thread_state = nullptr;

 private:
  static constexpr uint32_t kBuckets = 256;

  struct Top {  // the innermost frame at one of the last two walks
    uint64_t place = 0;  // 0: there was no such walk
    uint32_t hash = 0;
    uint32_t node = 0;
    uint32_t stack = kUnknownStack;
    bool may_run_node = true;
  };

  // Compares the innermost `depth_` frames, but for the first one, with those of the last walk.
  template <class Access>
  bool outer_frames_are_same(typename Access::FramePointer innermost) const noexcept;
  // Notes a walk that is not the last one's. Not inlined, so that a known walk saves no registers.
  template <class Access>
  __attribute__((noinline)) uint32_t take_in(typename Access::FramePointer innermost, uint32_t depth,
                                             uint64_t seed) noexcept;
  // Keeps the entries of the innermost `depth_` frames that still hold, and notes the other frames.
  // False: too much has changed.
  template <class Access>
  bool update(typename Access::FramePointer innermost) noexcept;
  // Notes all frames anew.
  template <class Access>
  void start_over(typename Access::FramePointer innermost) noexcept;

  uint32_t outer_hash(uint32_t i) const noexcept {
    return i != 0 ? entries_[i - 1].hash : PathHash::of_base(base());
  }
  // Notes the innermost frame's instruction, which is new, as that of the last walk.
  void note_top(uint64_t place) noexcept {
    first_unknown_ = size_ - 1;
    tops_[last_] = {place, PathHash::extended(outer_hash(size_ - 1), place), 0, kUnknownStack, true};
  }
  template <class Access>
  static void note(Entry& entry, typename Access::FramePointer frame) noexcept {
    entry.frame = frame;
    entry.place = Access::place(frame);
  }
  // Hides from the compiler that the result is compared with the true link next. Otherwise the
  // processor would wait for the link.
  template <class Access>
  static typename Access::FramePointer predicted(const void* frame) noexcept {
    asm("" : "+r"(frame));
    return static_cast<typename Access::FramePointer>(const_cast<void*>(frame));
  }

  // Hashes the entries from `first` on, which are new, and sets the number of entries.
  void extend(uint32_t first, uint32_t size) noexcept {
    size_ = size;
    first_unknown_ = first;
    uint32_t hash = outer_hash(first);
    for (uint32_t i = first; i < size; ++i) {
      hash = entries_[i].hash = PathHash::extended(hash, entries_[i].place);
      places_[bucket(entries_[i].frame)] = static_cast<uint16_t>(i);
    }
    innermost_ = entries_ + size - 1;
    outermost_ = size > depth_ ? entries_ + (size - depth_) : entries_;
    tops_[0] = {innermost_->place, hash, 0, kUnknownStack, true};
    tops_[1] = {};
    last_ = 0;
  }
  // The entry of a frame at this address, or null if its bucket holds another frame.
  Entry* find(const void* frame) noexcept {
    const uint32_t place = places_[bucket(frame)];
    return place < size_ && entries_[place].frame == frame ? &entries_[place] : nullptr;
  }
  static uint32_t bucket(const void* frame) noexcept {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(frame) >> 3) * 0x9e3779b1u >> 24;
  }

  static constexpr Entry kNone{};
  const Entry* innermost_ = &kNone;   // of the last walk, as the next
  const Entry* outermost_ = nullptr;  // the last one that was compared
  uint32_t size_ = 0;
  bool truncated_ = false;
  bool is_cut_ = false;  // there are more frames than entries
  uint32_t depth_ = 0;
  uint64_t seed_ = 0;
  uint32_t last_ = 0;  // which top belongs to the last walk
  uint32_t first_unknown_ = 0;
  Top tops_[2];
  uint16_t places_[kBuckets] = {};
  Entry entries_[kCapacity];  // outermost first; unspecified from `size_` on
};

}  // namespace pytracer

#include "frames/walk_memo_update.h"
