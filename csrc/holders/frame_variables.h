// The variables of Python frames, by the layouts of CPython 3.11 to 3.15: the only place that knows
// them.
#pragma once

#include "frames/cpython_frames.h"

namespace pytracer {

// A frame has places: first those of its variables, then its stack of values.
inline int variable_count(PythonFrame* frame) noexcept {
  return code_object(frame)->co_nlocalsplus;
}
// The object in a place, and whether its reference count has this reference.
#if PY_VERSION_HEX >= 0x030e0000
inline PyObject* value_at(PythonFrame* frame, int place) noexcept {
  constexpr uintptr_t kNoObject = 2, kBorrowed = 1;  // the tags of a _PyStackRef
  const uintptr_t bits = frame->localsplus[place].bits;
  return (bits & kNoObject) != 0 ? nullptr : reinterpret_cast<PyObject*>(bits & ~kBorrowed);
}
inline bool is_counted(PythonFrame* frame, int place) noexcept { return (frame->localsplus[place].bits & 1) == 0; }
inline int64_t used_places(PythonFrame* frame) noexcept {
  return frame->stackpointer - frame->localsplus;
}
#else
inline PyObject* value_at(PythonFrame* frame, int place) noexcept {
  return frame->localsplus[place];
}
inline bool is_counted(PythonFrame*, int) noexcept { return true; }
inline int64_t used_places(PythonFrame* frame) noexcept { return frame->stacktop; }
#endif
// How many values are on the stack of a frame, behind its variables; 0: unknown, as before Python 3.14
// while it runs.
inline int temporary_count(PythonFrame* frame) noexcept {
  const int64_t count = used_places(frame) - variable_count(frame);
  return count > 0 && count <= code_object(frame)->co_stacksize ? static_cast<int>(count) : 0;
}
// How many there may be: what is in these places may be no value, or one that was freed long ago.
inline int most_temporaries(PythonFrame* frame) noexcept {
  return PY_VERSION_HEX >= 0x030e0000 ? temporary_count(frame) : code_object(frame)->co_stacksize;
}
inline PythonFrame* frame_of_object(PyObject* frame) noexcept {
  return reinterpret_cast<PyFrameObject*>(frame)->f_frame;
}
// Of a generator or coroutine that is not over.
inline PythonFrame* frame_of_generator(PyObject* generator) noexcept {
  auto* const object = reinterpret_cast<PyGenObject*>(generator);
  if (object->gi_frame_state >= FRAME_CLEARED) return nullptr;
  return reinterpret_cast<PythonFrame*>(&object->gi_iframe);
}
// Whether a generator or coroutine runs.
inline bool is_executing(PyObject* generator) noexcept {
  return reinterpret_cast<PyGenObject*>(generator)->gi_frame_state == FRAME_EXECUTING;
}

}  // namespace pytracer
