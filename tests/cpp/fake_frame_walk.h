// Stands in for csrc/frame_walk.cpp: each thread "runs" the frames the test gives it.
#pragma once

#include <vector>

#include "frame_walk.h"

// Innermost first. A code pointer is any nonzero number.
void run_frames(std::vector<pytracer::RawFrame> frames);
pytracer::RawFrame frame_at(uintptr_t code, int32_t offset);
// The key of this thread's frames, as a hook gets it.
pytracer::WalkKey key_here(uint32_t depth, uint64_t seed);
