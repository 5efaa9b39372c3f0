#include "frames/code_objects.h"

#include <memory>

#include <Python.h>

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

std::string to_utf8(PyObject* text) {
  // Runs during deallocation of code objects too, so an exception that is set must stay set.
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const std::unique_ptr<PyObject, void (*)(PyObject*)> bytes(
      PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"), &Py_DecRef);
  PyErr_Restore(type, value, traceback);
  if (!bytes) return {};
  return {PyBytes_AS_STRING(bytes.get()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.get()))};
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

std::string code_name(const void* code) {
  return to_utf8(static_cast<const PyCodeObject*>(code)->co_name);
}

std::string code_filename(const void* code) {
  return to_utf8(static_cast<const PyCodeObject*>(code)->co_filename);
}

}  // namespace pytracer
