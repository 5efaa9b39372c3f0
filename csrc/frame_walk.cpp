#include "frame_walk.h"

#include <memory>

#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>

#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000
#undef _PyGC_FINALIZED
#include <internal/pycore_frame.h>
#endif

namespace pytracer {

namespace {

// What a version of CPython calls its things: the innermost frame, the next outer one, its code,
// its instruction (an address, unique while the code object lives) and what to skip.
#if PY_VERSION_HEX < 0x030b0000 && PY_VERSION_HEX >= 0x030a0000

constexpr bool kKnownPython = true;
using Frame = PyFrameObject;
inline Frame* innermost(PyThreadState* state) noexcept { return state->frame; }
inline Frame* outer(Frame* frame) noexcept { return frame->f_back; }
inline PyCodeObject* code_of(Frame* frame) noexcept { return frame->f_code; }
inline uint64_t instruction(Frame* frame) noexcept { return static_cast<uint32_t>(frame->f_lasti); }
inline int32_t offset_of(Frame* frame) noexcept {
  return frame->f_lasti * static_cast<int32_t>(sizeof(_Py_CODEUNIT));
}
inline bool is_shim(Frame*) noexcept { return false; }
inline bool is_incomplete(Frame*) noexcept { return false; }

#elif PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000 && !defined(Py_GIL_DISABLED)

constexpr bool kKnownPython = true;
using Frame = _PyInterpreterFrame;
inline Frame* outer(Frame* frame) noexcept { return frame->previous; }
#if PY_VERSION_HEX >= 0x030d0000
inline Frame* innermost(PyThreadState* state) noexcept { return state->current_frame; }
inline PyCodeObject* code_of(Frame* frame) noexcept {
  return reinterpret_cast<PyCodeObject*>(frame->f_executable);
}
inline _Py_CODEUNIT* instruction_pointer(Frame* frame) noexcept { return frame->instr_ptr; }
#else
inline Frame* innermost(PyThreadState* state) noexcept { return state->cframe->current_frame; }
inline PyCodeObject* code_of(Frame* frame) noexcept { return frame->f_code; }
inline _Py_CODEUNIT* instruction_pointer(Frame* frame) noexcept { return frame->prev_instr; }
#endif
#if PY_VERSION_HEX >= 0x030c0000
inline bool is_shim(Frame* frame) noexcept { return frame->owner == FRAME_OWNED_BY_CSTACK; }
#else
inline bool is_shim(Frame*) noexcept { return false; }
#endif
inline uint64_t instruction(Frame* frame) noexcept {
  return reinterpret_cast<uint64_t>(instruction_pointer(frame));
}
inline int32_t offset_of(Frame* frame) noexcept {
  return static_cast<int32_t>(reinterpret_cast<char*>(instruction_pointer(frame)) -
                              reinterpret_cast<char*>(_PyCode_CODE(code_of(frame))));
}
inline bool is_incomplete(Frame* frame) noexcept {
  PyCodeObject* code = code_of(frame);
  return frame->owner != FRAME_OWNED_BY_GENERATOR &&
         instruction_pointer(frame) < _PyCode_CODE(code) + code->_co_firsttraceable;
}

#else

constexpr bool kKnownPython = false;
struct Frame {};
inline Frame* innermost(PyThreadState*) noexcept { return nullptr; }
inline Frame* outer(Frame*) noexcept { return nullptr; }
inline PyCodeObject* code_of(Frame*) noexcept { return nullptr; }
inline uint64_t instruction(Frame*) noexcept { return 0; }
inline int32_t offset_of(Frame*) noexcept { return 0; }
inline bool is_shim(Frame*) noexcept { return false; }
inline bool is_incomplete(Frame*) noexcept { return false; }

#endif

// This frame, or the next outer one that is not a shim.
inline Frame* python_frame(Frame* frame) noexcept {
  while (frame != nullptr && is_shim(frame)) frame = outer(frame);
  return frame;
}

// Incomplete frames are hashed too. walk_frames() says when it left one out: its code object, which
// is not kept, may go without a change of the key.
struct Frames {
  using Frame = pytracer::Frame;
  // An address within a code object, but in 3.10 an offset.
  static constexpr bool kOwnInstructions = PY_VERSION_HEX >= 0x030b0000;
  static Frame* outer(Frame* frame) noexcept { return python_frame(pytracer::outer(frame)); }
  static const void* code(Frame* frame) noexcept { return code_of(frame); }
  static uint64_t instruction(Frame* frame) noexcept { return pytracer::instruction(frame); }
};

// Right with and without the GIL: the state belongs to the thread, not to the lock.
inline Frame* this_threads_frames() noexcept {
  PyThreadState* state = PyGILState_GetThisThreadState();
  return state != nullptr ? innermost(state) : nullptr;
}

}  // namespace

Following follow_frames(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept {
  Frame* const frame = python_frame(this_threads_frames());
  if (frame == nullptr) return Following::none;
  return memo.follow<Frames>(frame, depth, seed) ? Following::same : Following::other;
}

Walk walk_frames(RawFrame* out, uint32_t depth) noexcept {
  uint32_t frames = 0;
  bool keyed = true;
  for (Frame* frame = python_frame(this_threads_frames()); frame != nullptr;
       frame = Frames::outer(frame)) {
    if (frames == depth) return {frames, true, keyed};
    if (is_incomplete(frame)) {
      keyed = false;
    } else {
      out[frames++] = {code_of(frame), offset_of(frame)};
    }
  }
  return {frames, false, keyed};
}

std::string frame_walk_problem() {
  if (!kKnownPython) {
    return "Python " + std::string(Py_GetVersion()).substr(0, 6) +
           " is not one whose frames pytracer knows (3.10 to 3.13, with the GIL)";
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
         ") are not laid out as in the one pytracer was compiled for";
}

namespace {

void (*g_destroyed)(const void*) = nullptr;

#if PY_VERSION_HEX >= 0x030c0000
int on_code_event(PyCodeEvent event, PyCodeObject* code) {
  if (event == PY_CODE_EVENT_DESTROY) g_destroyed(code);
  return 0;
}
#endif

destructor g_dealloc = nullptr;

void dealloc_code(PyObject* code) {
  g_destroyed(code);
  g_dealloc(code);
}

std::string to_utf8(PyObject* text) {
  // Called while code objects are deallocated too: whatever exception is set stays set.
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const std::unique_ptr<PyObject, void (*)(PyObject*)> bytes(
      PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"), &Py_DecRef);
  PyErr_Restore(type, value, traceback);
  if (!bytes) return {};
  return {PyBytes_AS_STRING(bytes.get()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.get()))};
}

}  // namespace

bool watch_code(void (*destroyed)(const void* code)) {
  if (g_destroyed != nullptr) return true;
  g_destroyed = destroyed;
#if PY_VERSION_HEX >= 0x030c0000
  if (PyCode_AddWatcher(&on_code_event) >= 0) return true;
  PyErr_Clear();  // all eight places are taken: do as before 3.12
#endif
  g_dealloc = PyCode_Type.tp_dealloc;
  PyCode_Type.tp_dealloc = &dealloc_code;
  return true;
}

int32_t code_line(const void* code, int32_t offset) noexcept {
  return PyCode_Addr2Line(static_cast<PyCodeObject*>(const_cast<void*>(code)), offset);
}

std::string code_name(const void* code) {
  return to_utf8(static_cast<const PyCodeObject*>(code)->co_name);
}

std::string code_filename(const void* code) {
  return to_utf8(static_cast<const PyCodeObject*>(code)->co_filename);
}

}  // namespace pytracer
