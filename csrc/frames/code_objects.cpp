#include <Python.h>

#include "frames/frame_walk.h"

namespace pytracer {

namespace {

void (*g_destroyed)(const void*) = nullptr;
destructor g_dealloc = nullptr;  // the deallocator that dealloc_code() replaces

#if PY_VERSION_HEX >= 0x030c0000
int on_code_event(PyCodeEvent event, PyCodeObject* code) {
  if (event == PY_CODE_EVENT_DESTROY) g_destroyed(code);
  return 0;
}
#endif

void dealloc_code(PyObject* code) {
  g_destroyed(code);
  g_dealloc(code);
}

// As the codec "utf-8" with "surrogatepass". Python's own encoder needs the GIL, and allocates.
std::string_view to_utf8(PyObject* text, NameBuffer& buffer) noexcept {
#if PY_VERSION_HEX < 0x030c0000
  if (!PyUnicode_IS_READY(text)) return {};  // made by an old C function; no compiler does that
#endif
  constexpr size_t kMostOfOne = 4;  // bytes
  const auto kind = static_cast<int>(PyUnicode_KIND(text));
  const void* const data = PyUnicode_DATA(text);
  const Py_ssize_t length = PyUnicode_GET_LENGTH(text);
  size_t size = 0;
  const auto add = [&](uint32_t byte) { buffer.bytes[size++] = static_cast<char>(byte); };
  for (Py_ssize_t i = 0; i < length; ++i) {
    if (size + kMostOfOne > sizeof(buffer.bytes)) return {};
    const uint32_t c = PyUnicode_READ(kind, data, i);
    constexpr uint32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;  // bytes after the first
    add(kFirst[more] | c >> 6 * more);
    while (more-- > 0) add(0x80 | (c >> 6 * more & 0x3f));
  }
  return {buffer.bytes, size};
}

}  // namespace

void watch_code(void (*destroyed)(const void* code)) {
  if (g_destroyed != nullptr) return;
  g_destroyed = destroyed;
#if PY_VERSION_HEX >= 0x030c0000
  if (PyCode_AddWatcher(&on_code_event) >= 0) return;
  PyErr_Clear();
#endif
  g_dealloc = PyCode_Type.tp_dealloc;
  PyCode_Type.tp_dealloc = &dealloc_code;
}

int32_t code_line(const void* code, int32_t offset) noexcept {
  return PyCode_Addr2Line(static_cast<PyCodeObject*>(const_cast<void*>(code)), offset);
}

std::string_view code_name(const void* code, NameBuffer& buffer) noexcept {
  return to_utf8(static_cast<const PyCodeObject*>(code)->co_name, buffer);
}

std::string_view code_filename(const void* code, NameBuffer& buffer) noexcept {
  return to_utf8(static_cast<const PyCodeObject*>(code)->co_filename, buffer);
}

}  // namespace pytracer
