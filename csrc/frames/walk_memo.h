// The frames of a thread's last walk, so that the next walk hashes only the frames that changed.
//
// 1. One thread uses a memo at a time. Entries are compared with the thread's frames and never
//    dereferenced: a frame is read only because the thread state or its callee points to it. So
//    every walk is exact, whatever the memo held before, even another thread's frames.
// 2. A key depends on the innermost `depth` frames alone. The seed tells apart code objects that had
//    the same address one after the other.
// 3. Bounded: kCapacity entries. Only as many entries as the deepest walk needs are ever touched.
// 4. A loop often allocates and frees by turns, on two lines of one function. So the memo keeps the
//    innermost frame's last two instructions, each with its hash and its stack.
//
// Why a memo is faster than hashing each frame: the processor predicts that the next frame is the
// noted one, so it reads several frames at once instead of waiting for each link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "frames/walk_key.h"

namespace pytracer {

constexpr uint32_t kMaxStackDepth = 1024;

class WalkMemo {
 public:
  // Notes the innermost `depth` frames, at least one; `innermost` is not null. Returns true if
  // `stack` is the stack of this walk. So it is if frames, depth and seed equal those of the last
  // walk. So it is, too, if they equal those of the walk before the last one, and these two walks
  // differ in the innermost instruction alone.
  // `Access` reads frames: FramePointer, outer(), code(), instruction(), and
  // kInstructionsAreUnique, which says that no two live code objects share an instruction.
  template <class Access>
  bool follow(typename Access::FramePointer innermost, uint32_t depth, uint64_t seed) noexcept {
    if (depth == depth_ && seed == seed_ && outer_frames_are_same<Access>(innermost)) {
      if (is_at_top<Access>(tops_[last_], innermost)) return true;
      last_ ^= 1;
      if (is_at_top<Access>(tops_[last_], innermost)) return true;
      note_top<Access>(innermost);
      return false;
    }
    if (!update<Access>(innermost, depth)) start_over<Access>(innermost, depth);
    depth_ = depth;
    seed_ = seed;
    return false;
  }

  // Whether the thread is where it was at the last walk, as far as its innermost frame shows.
  template <class Access>
  bool is_at(typename Access::FramePointer innermost, uint32_t depth,
             uint64_t seed) const noexcept {
    return size_ != 0 && depth == depth_ && seed == seed_ &&
           entries_[size_ - 1].frame == innermost && is_at_top<Access>(tops_[last_], innermost);
  }

  // The key of the last walk.
  WalkKey key() noexcept {
    WalkHash hash = tops_[last_].hash;
    if (size_ > depth_) {
      if (depth_ != exponent_) {
        exponent_ = depth_;
        power_ = WalkHash::power(depth_);
      }
      hash = hash.without(entries_[size_ - depth_ - 1].hash, power_);
    }
    return hash.key(seed_, truncated_);
  }

  // Prepares the memo for another thread: the next walk counts as changed.
  void forget() noexcept {
    size_ = 0;
    lasting_thread_state = nullptr;
  }

  // The stack id of the last walk, which the caller notes; 0: unknown.
  uint32_t stack() const noexcept { return tops_[last_].stack; }
  void set_stack(uint32_t stack) noexcept { tops_[last_].stack = stack; }

  // The thread's PyThreadState, if it lives as long as there are walks; null: unknown.
  void* lasting_thread_state = nullptr;

 private:
  static constexpr uint32_t kSlack = 16;  // frames noted beyond `depth`, for calls that return
  static constexpr uint32_t kCapacity = kMaxStackDepth + 4 * kSlack;
  static constexpr uint32_t kBuckets = 256;

  struct Entry {  // of the innermost frame, only `frame` counts: the rest is in a Top
    const void* frame;
    uint64_t instruction;
    const void* code;
    WalkHash hash;  // of the frames from the outermost entry to this one
  };
  struct Top {  // the innermost frame at one of the last two walks
    uint64_t instruction = 0;
    const void* code = nullptr;  // null: there was no such walk
    WalkHash hash{0, 0};
    uint32_t stack = 0;
  };

  // Compares the innermost `depth_` frames, without the first one's instruction, with those of the
  // last walk.
  template <class Access>
  bool outer_frames_are_same(typename Access::FramePointer innermost) const noexcept;
  // Keeps the entries of the innermost `depth` frames that still hold, and notes the other frames.
  // False: too much has changed.
  template <class Access>
  bool update(typename Access::FramePointer innermost, uint32_t depth) noexcept;
  // Notes all frames anew.
  template <class Access>
  void start_over(typename Access::FramePointer innermost, uint32_t depth) noexcept;

  template <class Access>
  static bool holds(const Entry& entry, typename Access::FramePointer frame) noexcept {
    return entry.instruction == Access::instruction(frame) &&
           (Access::kInstructionsAreUnique || entry.code == Access::code(frame));
  }
  template <class Access>
  static bool is_at_top(const Top& top, typename Access::FramePointer innermost) noexcept {
    return top.instruction == Access::instruction(innermost) &&
           (Access::kInstructionsAreUnique || top.code == Access::code(innermost));
  }
  // Notes the innermost frame's instruction, which is new, as that of the last walk.
  template <class Access>
  void note_top(typename Access::FramePointer innermost) noexcept {
    const WalkHash outer = size_ > 1 ? entries_[size_ - 2].hash : WalkHash{0, 0};
    Top& top = tops_[last_];
    top.instruction = Access::instruction(innermost);
    top.code = Access::code(innermost);
    top.hash = outer.extended(top.code, top.instruction);
    top.stack = 0;
  }
  template <class Access>
  static void note(Entry& entry, typename Access::FramePointer frame) noexcept {
    entry.frame = frame;
    entry.instruction = Access::instruction(frame);
    entry.code = Access::code(frame);
  }
  // Hides from the compiler that the result is compared with the true link next. Otherwise the
  // processor would wait for the link.
  template <class Access>
  static typename Access::FramePointer predicted(const void* frame) noexcept {
    asm("" : "+r"(frame));
    return static_cast<typename Access::FramePointer>(const_cast<void*>(frame));
  }

  // Hashes the entries from `first` on, which are new, and sets the number of entries.
  void extend(Entry* first, uint32_t size) noexcept {
    size_ = size;
    WalkHash hash = first == entries_ ? WalkHash{0, 0} : first[-1].hash;
    for (Entry* entry = first; entry < entries_ + size; ++entry) {
      hash = entry->hash = hash.extended(entry->code, entry->instruction);
      places_[bucket(entry->frame)] = static_cast<uint16_t>(entry - entries_);
    }
    const Entry& top = entries_[size - 1];
    tops_[0] = {top.instruction, top.code, top.hash, 0};
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

  uint32_t size_ = 0;
  bool truncated_ = false;  // the last walk had more than `depth_` frames
  uint32_t depth_ = 0;
  uint64_t seed_ = 0;
  uint32_t last_ = 0;  // which top belongs to the last walk
  uint32_t exponent_ = 0;
  Top tops_[2];
  WalkHash power_ = WalkHash::power(0);  // WalkHash::power(exponent_)
  uint16_t places_[kBuckets] = {};
  Entry entries_[kCapacity];  // outermost first; unspecified from `size_` on
};

}  // namespace pytracer

#include "frames/walk_memo_update.h"
