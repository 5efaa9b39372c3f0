// The call stacks of all devices, each stored once, until the last session is gone.
//
// 1. A frame is a place in a code object. A stack is its innermost frame and the stack of the
//    frames around it, so stacks with the same callers share them. Stacks are equal when their
//    frames are. Code objects are distinguished by identity, not by address: code_destroyed()
//    retires an address.
// 2. find() is lock-free and runs in hooks. intern() takes a mutex, which is held for microseconds:
//    under it nothing calls Python, waits, or allocates much memory.
// 3. Names and lines are read from code objects only with the GIL, which guards them, and without
//    the mutex: at export, or when the code object is destroyed.
// 4. Bounded by max_bytes. A stack that finds no place gets id 0 and is counted. A name that finds
//    none, because it is far longer than usual, is empty.
// 5. When places for stacks run low, a collection frees the stacks that nothing refers to
//    (stack_collector.h), and what it has of destroyed code objects that no stack refers to: a
//    program may make and drop functions all the time. An id keeps its meaning while a ring, a live
//    table, a queue or a hook has it, while the table is pinned, and while it is held.
// More than 150 lines: collections (stack_collection.cpp) share the mutex and the counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "frames/frame_walk.h"
#include "support/id_list.h"
#include "support/linear_hash.h"
#include "support/reserved_array.h"
#include "record/stack_tree.h"
#include "record/walk_cache.h"

namespace pytracer {

class StackTable {
 public:
  using Stack = StackTree::Stack;
  struct Frame {
    const void* pointer;  // of the code object; null once the code object is destroyed
    uint32_t code;   // 0: a free place
    int32_t offset;  // of the instruction, in bytes
    int32_t line;    // unspecified until resolved
    uint32_t next;   // in the index, or of the free places
    uint32_t next_of_code;
  };
  struct Code {
    const void* pointer;  // null once the code object is destroyed and was read
    uint32_t next;        // in the index, of the unused ones, or of the free places
    uint32_t newest_frame;
    uint32_t filename;  // string ids
    uint32_t name;
    uint32_t stacks;  // whose frame is of this code object
    bool named;  // filename and name were read
  };
  struct Stats {
    uint64_t stacks, frames, codes, bytes, max_bytes, truncated, dropped, freed;
  };

  explicit StackTable(uint64_t max_bytes);

  // In a hook, any thread. The seed of walk keys, which changes whenever an address is retired and
  // is different for each table.
  uint64_t seed() const noexcept { return seed_.load(std::memory_order_acquire); }
  uint32_t find(const WalkKey& key) const noexcept { return cache_.find(key); }
  // In a hook, any thread. 0 when the table is full.
  uint32_t intern(const RawFrame* frames, const Walk& walk, const WalkKey& key) noexcept;

  // In a hook, any thread. What a collection may have freed since an era is not of this era.
  uint64_t era() const noexcept { return era_.load(std::memory_order_acquire); }
  // In a hook. The id of a stack with what is known of the node that runs; the plain stack's id when
  // the table is full. `seed` was read before the ids were obtained.
  uint32_t intern_backward(const Backward& backward, uint64_t seed) noexcept;
  // In a hook. Whether the innermost frame of a stack of the calling thread is of this code object.
  bool is_innermost(uint32_t id, const void* code) const noexcept {
    return frames_[stacks_.stack(id).frame].pointer == code;
  }

  // In a hook; the collector, which makes sure that one thread at a time collects.
  bool wants_collection() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  void begin_collection() noexcept;
  // The marks of make_marks_stale() and before are made again from here on.
  void clear_stale() noexcept;
  // Returns how many stacks were not marked before.
  uint32_t mark(const uint32_t* ids, uint32_t count) noexcept;
  // The same for a part of the held stacks, from the first one on after clear_stale(). Returns whether
  // that were all.
  bool mark_held() noexcept;
  enum class Sweep { unfinished, done, marks_are_stale };
  Sweep sweep() noexcept;  // a part of the table; nothing while it is pinned

  // Any thread, not in a hook. As long as the result or a copy of it exists, no stack is freed.
  static std::shared_ptr<StackTable> pinned(std::shared_ptr<StackTable> table);
  // As long as the result or a copy of it exists, these stacks are not freed. While pinned, for ids that
  // were in a ring or a live table since. `table` itself is not what pins it. Throws std::bad_alloc.
  static std::shared_ptr<StackTable> holding(std::shared_ptr<StackTable> table,
                                             std::vector<uint32_t> ids);
  // While pinned: an old ring's ids were copied to where a collection may have looked already.
  void make_marks_stale();

  // With the GIL.
  void code_destroyed(const void* pointer) noexcept;
  // Reads the lines of all frames and the names of all code objects.
  void resolve();
  // Frames from 1 on, below this one, were resolved.
  uint32_t resolved_frames() const noexcept { return resolved_frames_; }

  // Any thread, without a lock, for ids that were given out before the last resolve(), while the
  // table is pinned or the stack is held. Stack 0 has no frames.
  const Stack& stack(uint32_t id) const noexcept { return stacks_.stack(id); }
  // An event's stack without links, and what they say.
  Backward backward(uint32_t id) const noexcept;
  const Frame& frame(uint32_t id) const noexcept { return frames_[id]; }
  uint32_t filename(const Frame& frame) const noexcept { return codes_[frame.code].filename; }
  uint32_t name(const Frame& frame) const noexcept { return codes_[frame.code].name; }
  const std::string& string(uint32_t id) const noexcept { return *strings_[id].text; }

  // Any thread.
  bool has_stack(uint32_t id) const;  // whether an event may have it
  bool is_held(uint32_t id) const;
  Stats stats() const;

 private:
  // How many items a thread looks at while others wait for the mutex.
  static constexpr uint32_t kBurst = 1024;
  // What a string costs besides its characters: itself, and its node in the map.
  static constexpr uint64_t kStringBytes = sizeof(std::string) + 64;
  // The room that is reserved for the two names of a code object until they are read.
  static constexpr uint64_t kNameBytes = 2 * kStringBytes + 256;

  // Under mutex_; 0: no room.
  uint32_t intern_walk(const RawFrame* raw, const Walk& walk) noexcept;
  uint32_t intern_stack(uint32_t outer, uint32_t frame, bool truncated) noexcept;
  uint32_t finish_intern(uint32_t id, bool truncated, const WalkKey* key) noexcept;
  uint32_t intern_code(const void* pointer) noexcept;
  uint32_t intern_frame(const RawFrame& raw) noexcept;
  uint32_t add_frame(const RawFrame& raw) noexcept;
  uint32_t add_stack(uint32_t outer, uint32_t frame, bool truncated) noexcept;
  uint32_t intern_string(std::string text) noexcept;  // 0: no room
  void release_string(uint32_t id) noexcept;
  void stack_freed(uint32_t frame) noexcept;
  bool remove_unused_codes(uint32_t most) noexcept;  // returns whether that were all
  void want_collection() noexcept;  // if places for stacks, or for frames, run low
  bool has_room(uint64_t bytes) const noexcept { return bytes_ + bytes <= max_bytes_; }
  bool take(uint64_t bytes) noexcept;  // counts the bytes, if there is room for them
  static uint64_t new_seed() noexcept;  // any thread
  // With the GIL, without mutex_.
  void name_code(Code& code);
  void resolve_frame(Frame& frame);

  struct CodeItems {
    StackTable& table;
    uint64_t hash(uint32_t id) const noexcept;
    uint32_t& next(uint32_t id) noexcept { return table.codes_[id].next; }
  } code_items_{*this};
  struct FrameItems {
    StackTable& table;
    uint64_t hash(uint32_t id) const noexcept;
    uint32_t& next(uint32_t id) noexcept { return table.frames_[id].next; }
  } frame_items_{*this};

  mutable std::mutex mutex_;  // guards all below, except where a comment says otherwise
  const uint64_t max_bytes_;
  // Stacks and their cache leave the rest to frames and code objects: places of freed stacks are
  // for stacks alone, so new functions would have no room from the first collection on.
  const uint64_t max_stack_bytes_ = max_bytes_ - max_bytes_ / 8;
  // Item 0 of each stands for "none". Items that were given out are read without the lock.
  ReservedArray<Code> codes_;
  ReservedArray<Frame> frames_;
  uint32_t code_count_ = 1, frame_count_ = 1;
  IdList free_codes_, free_frames_;  // places
  uint32_t dead_codes_ = 0;          // destroyed, and not yet removed
  IdList unused_codes_;              // those without stacks
  uint32_t reused_frames_ = UINT32_MAX;  // from here on, places were used again since resolve()
  LinearHash<CodeItems> code_index_;
  LinearHash<FrameItems> frame_index_;
  StackTree stacks_;
  WalkCache cache_;
  // The walk that was interned last, outermost frame first. Most new walks begin with the same
  // frames, which then need no lookup: without it, a new stack costs three times as much.
  struct Step {
    const void* code;
    int32_t offset;
    uint32_t stack;  // of this frame and the frames around it
  };
  Step last_walk_[kMaxStackDepth];
  uint32_t last_walk_frames_ = 0;
  bool last_walk_truncated_ = false;
  std::atomic<uint64_t> seed_{new_seed()};
  std::atomic<uint64_t> era_{seed_.load()};
  uint64_t bytes_;  // of everything, at most max_bytes_
  uint64_t walks_ = 0, truncated_ = 0, dropped_ = 0, freed_ = 0;
  std::atomic<bool> wanted_{false};  // a collection is wanted, or has begun
  bool marks_are_stale_ = false;
  std::atomic<uint32_t> pins_{0};  // grows under the mutex alone
  uint64_t since_collection_ = 0;  // stacks added or dropped since the last collection began
  uint64_t marked_ids_ = 0;        // how many ids that collection has marked
  struct Held {
    std::vector<uint32_t> ids;  // sorted
    std::atomic<bool> released{false};
  };
  std::vector<std::unique_ptr<Held>> held_;  // the place of a released one is used again
  size_t next_held_ = 0, next_held_id_ = 0;  // of mark_held()
  struct String {
    const std::string* text;  // a key of string_ids_
    uint32_t uses;            // by code objects
    uint32_t next;            // of the free places
  };
  std::unordered_map<std::string, uint32_t> string_ids_;
  ReservedArray<String> strings_;  // [0] is empty
  uint32_t string_count_ = 1;
  IdList free_strings_;
  uint32_t resolved_frames_ = 1;  // guarded by the GIL, not by mutex_
};

}  // namespace pytracer
