// The calling thread's own Python frames: the only place that knows CPython's frame structures.
//
// 1. follow_frames() and walk_frames() take no lock, no reference and no GIL, allocate nothing and
//    read nothing but the calling thread's own frames, which nobody else changes meanwhile. The
//    caller sees to it that no thread state is freed under them (Recorder::stop_walking).
// 2. Frames are those sys._getframe() shows: shim frames and frames that have not reached their
//    first traceable instruction are left out.
// 3. A (code address, instruction) pair names a place in the program only as long as that code
//    object lives: watch_code() tells when one goes. From CPython 3.12 by PyCode_AddWatcher, before
//    by standing in for the code type's deallocator.
// Tests link a walk of their own instead of frame_walk.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "walk_memo.h"

namespace pytracer {

struct RawFrame {
  const void* code;  // PyCodeObject; identity, not ownership
  int32_t offset;    // of the instruction, in bytes
};

struct Walk {
  uint32_t frames;  // how many were written
  bool truncated;   // there were more than `depth`
  bool keyed;       // none was left out, so the memo's key stands for this walk
};

enum class Following { none /* this thread runs no Python */, same, other };

// Notes the innermost `depth` frames, one or more, in this thread's memo, which has their key then.
// `same`: as those before, under the same seed. Any thread, in a hook.
Following follow_frames(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept;
// The innermost `depth` frames themselves, innermost first. Any thread, in a hook.
Walk walk_frames(RawFrame* out, uint32_t depth) noexcept;

// All below: with the GIL.

// Empty if our walk equals the one of CPython's public interface here and now; else why stacks
// cannot be recorded.
std::string frame_walk_problem();
// Has `destroyed` called with each code object about to go. False: cannot be known.
bool watch_code(void (*destroyed)(const void* code));
int32_t code_line(const void* code, int32_t offset) noexcept;
std::string code_name(const void* code);      // co_name, UTF-8 (surrogates passed)
std::string code_filename(const void* code);  // co_filename, UTF-8 (surrogates passed)

}  // namespace pytracer
