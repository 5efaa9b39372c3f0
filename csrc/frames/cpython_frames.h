// The layouts of CPython's frames, one for each version: the only place that knows them.
//
// For each version: PythonFrame, innermost_frame(), outer_frame(), code_object(), instruction() (a
// number that no other instruction of a living code object has), instruction_offset() in bytes, and
// is_shim() and is_incomplete(), which name the frames that sys._getframe() hides, and
// is_first_thread_state(). None of these functions takes a reference, a lock or the GIL.
// kPythonIsKnown is false for newer versions, and without the GIL: nothing is called then. Otherwise
// frame_walk_problem() compares the walk with Python's own view before anything is recorded.
#pragma once

#include <cstdint>

#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>

#undef _PyGC_FINALIZED
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe_structs.h>
#endif

namespace pytracer {

#if defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x03100000
constexpr bool kPythonIsKnown = false;
#else
constexpr bool kPythonIsKnown = true;
#endif
using PythonFrame = _PyInterpreterFrame;
inline PythonFrame* outer_frame(PythonFrame* frame) noexcept { return frame->previous; }
#if PY_VERSION_HEX >= 0x030d0000
inline PythonFrame* innermost_frame(PyThreadState* state) noexcept { return state->current_frame; }
inline _Py_CODEUNIT* instruction_pointer(PythonFrame* frame) noexcept { return frame->instr_ptr; }
#else
inline PythonFrame* innermost_frame(PyThreadState* state) noexcept {
  return state->cframe->current_frame;
}
inline _Py_CODEUNIT* instruction_pointer(PythonFrame* frame) noexcept { return frame->prev_instr; }
#endif
#if PY_VERSION_HEX >= 0x030e0000
inline PyCodeObject* code_object(PythonFrame* frame) noexcept {
  constexpr uintptr_t kTags = 3;  // a _PyStackRef has them in the lowest bits of the address
  return reinterpret_cast<PyCodeObject*>(frame->f_executable.bits & ~kTags);
}
#elif PY_VERSION_HEX >= 0x030d0000
inline PyCodeObject* code_object(PythonFrame* frame) noexcept {
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
}
#else
inline PyCodeObject* code_object(PythonFrame* frame) noexcept { return frame->f_code; }
#endif
#if PY_VERSION_HEX >= 0x030e0000
inline bool is_shim(PythonFrame* frame) noexcept {
  return frame->owner >= FRAME_OWNED_BY_INTERPRETER;
}
#elif PY_VERSION_HEX >= 0x030c0000
inline bool is_shim(PythonFrame* frame) noexcept { return frame->owner == FRAME_OWNED_BY_CSTACK; }
#else
inline bool is_shim(PythonFrame*) noexcept { return false; }
#endif
inline _Py_CODEUNIT* first_instruction(PyCodeObject* code) noexcept {
  return reinterpret_cast<_Py_CODEUNIT*>(code->co_code_adaptive);
}
inline uint64_t instruction(PythonFrame* frame) noexcept {
  return reinterpret_cast<uint64_t>(instruction_pointer(frame));
}
inline int32_t instruction_offset(PythonFrame* frame) noexcept {
  return static_cast<int32_t>(
      reinterpret_cast<char*>(instruction_pointer(frame)) -
      reinterpret_cast<char*>(first_instruction(code_object(frame))));
}
inline bool is_incomplete(PythonFrame* frame) noexcept {
  PyCodeObject* code = code_object(frame);
  return instruction_pointer(frame) < first_instruction(code) + code->_co_firsttraceable &&
         frame->owner != FRAME_OWNED_BY_GENERATOR;
}
// Whether `state` is the thread state with which Python began. That state lives until Python ends.
// The states of an interpreter are numbered from 1.
inline bool is_first_thread_state(PyThreadState* state) noexcept {
  return state->id == 1 && state->interp == PyInterpreterState_Main();
}

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
