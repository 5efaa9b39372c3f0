// Replaces csrc/frames in the C++ tests: each thread "runs" the frames that the test sets.
#pragma once

#include <string>
#include <vector>

#include "frames/frame_walk.h"

// Sets this thread's frames, innermost first. A code pointer is any nonzero number.
void run_frames(std::vector<pytracer::RawFrame> frames);
pytracer::RawFrame frame_at(uintptr_t code, int32_t offset);
// The code of torch's function that calls autograd's engine; the others are named after their numbers.
constexpr uintptr_t kEngineCode = 999;
// The folder of the file name that code_filename() derives from the code object; if it is empty,
// all files are "file.py".
extern std::string folder_of_files;
