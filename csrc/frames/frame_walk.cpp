#include "frames/frame_walk.h"

#include "frames/cpython_frames.h"

namespace pytracer {

namespace {

// `frame`, or the next outer frame that is not a shim.
inline PythonFrame* skip_shims(PythonFrame* frame) noexcept {
  while (frame != nullptr && is_shim(frame)) frame = outer_frame(frame);
  return frame;
}

// What WalkMemo::follow() reads of frames. Incomplete frames are hashed too, so that a memo's frames
// are linked as those in memory are. Walk::keyed says when walk_frames() left one out: the stack
// table does not keep that frame's code object, which may then be destroyed without a new seed.
struct FrameAccess {
  using FramePointer = PythonFrame*;
  static constexpr bool kInstructionsAreUnique = kInstructionIsAddress;
  static PythonFrame* outer(PythonFrame* frame) noexcept { return skip_shims(outer_frame(frame)); }
  static const void* code(PythonFrame* frame) noexcept { return code_object(frame); }
  static uint64_t instruction(PythonFrame* frame) noexcept { return pytracer::instruction(frame); }
};

// Valid with and without the GIL: the thread state belongs to the thread.
inline PythonFrame* innermost_frame_of(PyThreadState* state) noexcept {
  return state != nullptr ? skip_shims(innermost_frame(state)) : nullptr;
}

// CPython's lookup takes a third of a short walk, so it is done once on the thread with which Python
// began. That thread's state lives until Python ends, and walks end before. Other states may be
// deleted at any time, as by PyGILState_Release().
inline PythonFrame* innermost_frame_here(WalkMemo& memo) noexcept {
  if (void* const lasting = memo.lasting_thread_state) {
    return innermost_frame_of(static_cast<PyThreadState*>(lasting));
  }
  PyThreadState* const state = PyGILState_GetThisThreadState();
  if (state != nullptr && is_first_thread_state(state)) memo.lasting_thread_state = state;
  return innermost_frame_of(state);
}

}  // namespace

FrameChange compare_frames(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept {
  PythonFrame* const frame = innermost_frame_here(memo);
  if (frame == nullptr) return FrameChange::no_frames;
  return memo.follow<FrameAccess>(frame, depth, seed) ? FrameChange::same : FrameChange::changed;
}

bool is_at_last_walk(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept {
  PythonFrame* const frame = innermost_frame_here(memo);
  return frame != nullptr && memo.is_at<FrameAccess>(frame, depth, seed);
}

bool runs_python(WalkMemo& memo) noexcept { return innermost_frame_here(memo) != nullptr; }

Walk walk_frames(RawFrame* out, uint32_t depth) noexcept {
  RawFrame* next = out;
  RawFrame* const end = out + depth;
  bool keyed = true;
  PythonFrame* frame = innermost_frame_of(PyGILState_GetThisThreadState());
  for (; frame != nullptr && next != end; frame = FrameAccess::outer(frame)) {
    if (is_incomplete(frame)) {
      keyed = false;
    } else {
      *next++ = {code_object(frame), instruction_offset(frame)};
    }
  }
  return {static_cast<uint32_t>(next - out), frame != nullptr, keyed};
}

std::string frame_walk_problem() {
  if (!kPythonIsKnown) {
    return "pytracer does not know the frames of Python " +
           std::string(Py_GetVersion()).substr(0, 6) + ", only of 3.10 to 3.14 with the GIL";
  }
  RawFrame ours[kMaxStackDepth];
  const uint32_t count = walk_frames(ours, kMaxStackDepth).frames;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  uint32_t index = 0;
  bool same = true;
  while (frame != nullptr && index < kMaxStackDepth) {
    PyCodeObject* code = PyFrame_GetCode(frame);
#if PY_VERSION_HEX >= 0x030b0000
    const int32_t offset = PyFrame_GetLasti(frame);
#else
    const int32_t offset = frame->f_lasti * static_cast<int32_t>(sizeof(_Py_CODEUNIT));
#endif
    same = same && index < count && ours[index].code == code && ours[index].offset == offset;
    ++index;
    Py_DECREF(code);
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  if (same && index == count) return {};
  return "this Python's frames (" + std::string(Py_GetVersion()) +
         ") have another layout than those that pytracer was compiled for";
}

}  // namespace pytracer
