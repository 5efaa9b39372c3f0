// Walks the calling thread's own Python frames.
//
// 1. compare_frames() and walk_frames() take no lock, no reference and no GIL, allocate nothing and
//    read only the calling thread's own frames, which no other thread changes. The caller makes sure
//    that the thread state is not freed meanwhile (Recorder::stop_walking).
// 2. The frames are those that sys._getframe() shows: shim frames and frames that have not reached
//    their first traceable instruction are left out.
// 3. A pair (code address, offset) names a place in the program only while the code object lives:
//    see watch_code() in code_objects.h.
// The C++ tests link fake_frame_walk.cpp instead of frame_walk.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "frames/walk_memo.h"

namespace pytracer {

struct RawFrame {
  const void* code;  // PyCodeObject: its identity, without a reference
  int32_t offset;    // of the instruction, in bytes
};

struct Walk {
  uint32_t frames;  // how many were written
  bool truncated;   // the thread has more than `depth` frames
  bool keyed;       // no frame was left out, so the memo's key belongs to this walk
};

enum class FrameChange { no_frames /* the thread runs no Python */, same, changed };

// Compares the innermost `depth` frames, at least one, with the memo's last walk under the same
// seed, and notes them in the memo. Any thread, in a hook.
FrameChange compare_frames(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept;

// Whether the thread's innermost frame is where it was at the memo's last walk, with the same depth
// and seed. Outer frames are not compared. Any thread, in a hook.
bool is_at_last_walk(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept;

// Whether the thread is inside of Python code. Any thread, in a hook.
bool runs_python(WalkMemo& memo) noexcept;

// Writes the innermost `depth` frames, innermost first. Any thread, in a hook.
Walk walk_frames(RawFrame* out, uint32_t depth) noexcept;

// Compares a walk with CPython's public interface, here and now. Returns why stacks cannot be
// recorded; empty if they can. With the GIL.
std::string frame_walk_problem();

}  // namespace pytracer
