#include "frames/frame_walk.h"

#include <utility>

#include "frames/cpython_frames.h"

namespace pytracer {

namespace {

// `frame`, or the next outer frame that is not a shim.
inline PythonFrame* skip_shims(PythonFrame* frame) noexcept {
  while (frame != nullptr && is_shim(frame)) frame = outer_frame(frame);
  return frame;
}

// What WalkMemo::follow() reads of frames. Hidden frames are noted too, so that a memo's frames are
// linked as those in memory are.
struct FrameAccess {
  using FramePointer = PythonFrame*;
  static PythonFrame* outer(PythonFrame* frame) noexcept { return skip_shims(outer_frame(frame)); }
  static uint64_t place(PythonFrame* frame) noexcept { return instruction(frame); }
};

// Valid with and without the GIL: the thread state belongs to the thread.
inline PythonFrame* innermost_frame_of(PyThreadState* state) noexcept {
  return state != nullptr ? skip_shims(innermost_frame(state)) : nullptr;
}

// CPython's lookup takes a third of a short walk, so it is done once on the thread with which Python
// began. That thread's state lives until Python ends, and walks end before. Other states may be
// deleted at any time, as by PyGILState_Release().
PythonFrame* innermost_frame_here(WalkMemo& memo) noexcept {
  PyThreadState* const state = PyGILState_GetThisThreadState();
  if (state != nullptr && is_first_thread_state(state)) memo.lasting_thread_state = state;
  return innermost_frame_of(state);
}

// Not inlined, so that a walk of the first thread saves no registers.
__attribute__((noinline)) uint32_t find_stack_of_any_thread(WalkMemo& memo, uint32_t depth,
                                                            uint64_t seed,
                                                            bool is_same_call) noexcept {
  PythonFrame* const frame = innermost_frame_here(memo);
  return frame != nullptr ? memo.find<FrameAccess>(frame, depth, seed, is_same_call) : 0;
}

}  // namespace

uint32_t find_stack(WalkMemo& memo, uint32_t depth, uint64_t seed, bool is_same_call) noexcept {
  auto* const state = static_cast<PyThreadState*>(memo.lasting_thread_state);
  if (state == nullptr) return find_stack_of_any_thread(memo, depth, seed, is_same_call);
  PythonFrame* const frame = innermost_frame_of(state);
  return frame != nullptr ? memo.find<FrameAccess>(frame, depth, seed, is_same_call) : 0;
}

bool runs_python(WalkMemo& memo) noexcept { return innermost_frame_here(memo) != nullptr; }

RawFrame read_frame(const void* pointer) noexcept {
  PythonFrame* const frame = static_cast<PythonFrame*>(const_cast<void*>(pointer));
  return {code_object(frame), instruction_offset(frame), is_incomplete(frame)};
}

std::string frame_walk_problem() {
  if (!kPythonIsKnown) {
    return "pytracer does not know the frames of Python " +
           std::string(Py_GetVersion()).substr(0, 6) + ", only of 3.11 to 3.15 with the GIL";
  }
  PythonFrame* ours = innermost_frame_of(PyGILState_GetThisThreadState());
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  bool same = true;
  while (frame != nullptr && same) {
    while (ours != nullptr && is_incomplete(ours)) ours = FrameAccess::outer(ours);
    PyCodeObject* code = PyFrame_GetCode(frame);
    same = ours != nullptr && code_object(ours) == code &&
           instruction_offset(ours) == PyFrame_GetLasti(frame);
    if (same) ours = FrameAccess::outer(ours);
    Py_DECREF(code);
    Py_DECREF(std::exchange(frame, PyFrame_GetBack(frame)));
  }
  Py_XDECREF(frame);
  while (ours != nullptr && is_incomplete(ours)) ours = FrameAccess::outer(ours);
  if (same && ours == nullptr) return {};
  return "this Python's frames (" + std::string(Py_GetVersion()) +
         ") have another layout than those that pytracer was compiled for";
}

bool frames_are_known() {
  static const bool are_known = frame_walk_problem().empty();
  return are_known;
}

}  // namespace pytracer
