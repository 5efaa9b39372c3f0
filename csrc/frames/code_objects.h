// CPython's code objects: their names and lines, and a notice when one is destroyed.
//
// Names and lines are read while a frame runs the code object, on that frame's thread, with or without
// the GIL: the frame keeps the code object alive, and what is read of it never changes. No function here
// allocates or changes an object. The C++ tests link fake_frame_walk.cpp instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pytracer {

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

}  // namespace pytracer
