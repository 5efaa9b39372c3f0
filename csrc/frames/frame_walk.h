// Walks the calling thread's own Python frames.
//
// 1. find_stack() and read_frame() take no lock, no reference and no GIL, allocate nothing and
//    read only the calling thread's own frames, which no other thread changes. The caller makes sure
//    that the thread state is not freed meanwhile (Recorder::stop_walking).
// 2. A pair (code address, offset) names a place in the program only while the code object lives:
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
  bool is_hidden;    // sys._getframe() does not show it: it has not reached its first traceable instruction
};

// The stack of the innermost `depth` frames, at least one, which the memo notes: 0 if the thread runs no
// Python, kUnknownStack if it is not the memo's stack of the last walks under the same seed.
// `is_same_call`: the last walk was for the same call of the allocator, so outer frames need not be
// compared if the innermost one has not moved on. Any thread, in a hook.
uint32_t find_stack(WalkMemo& memo, uint32_t depth, uint64_t seed, bool is_same_call) noexcept;

// Whether the thread is inside of Python code. Any thread, in a hook.
bool runs_python(WalkMemo& memo) noexcept;

// A frame that the memo has noted in the calling thread's last walk. In the same hook.
RawFrame read_frame(const void* frame) noexcept;

// Compares a walk with CPython's public interface, here and now. Returns why stacks cannot be
// recorded; empty if they can. With the GIL.
std::string frame_walk_problem();

// Whether it finds none, asked once.
bool frames_are_known();

}  // namespace pytracer
