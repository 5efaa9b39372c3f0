// CPython's code objects: their names and lines, and a notice when one is destroyed.
//
// All functions need the GIL. The C++ tests link fake_frame_walk.cpp instead.
#pragma once

#include <cstdint>
#include <string>

namespace pytracer {

// Has `destroyed` called with each code object that is about to be destroyed, from now on; only the
// first call counts. From CPython 3.12 by PyCode_AddWatcher; in older versions, and where all eight
// watchers are taken, by replacing the code type's deallocator.
void watch_code(void (*destroyed)(const void* code));

// The line of the instruction at `offset` bytes.
int32_t code_line(const void* code, int32_t offset) noexcept;
std::string code_name(const void* code);      // co_name in UTF-8, which may have surrogates
std::string code_filename(const void* code);  // co_filename, likewise

}  // namespace pytracer
