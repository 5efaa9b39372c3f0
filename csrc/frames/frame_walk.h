// Walks the calling thread's own Python frames.
//
// 1. find_stack() and read_frame() take no lock, no reference and no GIL, allocate nothing and
//    read only the calling thread's own frames, which no other thread changes. The caller makes sure
//    that the thread state is not freed meanwhile (Recorder::stop_walking).
// 2. A pair (code address, offset) names a place in the program only while the code object lives:
//    see watch_code().
// The C++ tests link fake_frame_walk.cpp instead of frame_walk.cpp and code_objects.cpp.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

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

// CPython's code objects: their names and lines, and a notice when one is destroyed.
//
// Names and lines are read while a frame runs the code object, on that frame's thread, with or without
// the GIL: the frame keeps the code object alive, and what is read of it never changes. No function here
// allocates or changes an object.

// With the GIL. Has `destroyed` called with each code object that is about to be destroyed, from now on;
// only the first call counts. From CPython 3.12 by PyCode_AddWatcher; in older versions, and where all
// eight watchers are taken, by replacing the code type's deallocator.
void watch_code(void (*destroyed)(const void* code));

// The line of the instruction at `offset` bytes.
int32_t code_line(const void* code, int32_t offset) noexcept;

// Room for a name. A longer one is empty: such a name is no file's.
struct NameBuffer {
  char bytes[8192];
};
// co_name and co_filename in UTF-8, which may have surrogates; in the buffer.
std::string_view code_name(const void* code, NameBuffer& buffer) noexcept;
std::string_view code_filename(const void* code, NameBuffer& buffer) noexcept;

// Tells when a walk first meets a code object, which costs nothing but at a code object that is new.
class CodeWatch {
 public:
  // With the GIL. `seen` is called once, on any thread, in a hook and with locks: it must not wait, nor
  // need the GIL. Replaces the watch before.
  static void start(const void* code, void (*seen)() noexcept) noexcept {
    seen_.store(seen, std::memory_order_relaxed);
    code_.store(code, std::memory_order_release);
  }
  static void meet(const void* code) noexcept {
    if (code_.load(std::memory_order_acquire) != code) return;
    if (code_.exchange(nullptr, std::memory_order_acq_rel) == code) {
      seen_.load(std::memory_order_relaxed)();
    }
  }

 private:
  static inline std::atomic<const void*> code_{nullptr};
  static inline std::atomic<void (*)() noexcept> seen_{nullptr};
};

}  // namespace pytracer
