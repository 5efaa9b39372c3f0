// The id of this thread's stack, found or interned as Recorder does it for an event.
#pragma once

#include "fake_frame_walk.h"
#include "record/stack_table.h"

inline uint32_t stack_here(pytracer::StackTable& table, uint32_t depth = 32) {
  const pytracer::WalkKey key = key_here(depth, table.seed());
  if (const uint32_t id = table.find(key)) return id;
  pytracer::RawFrame frames[pytracer::kMaxStackDepth];
  const pytracer::Walk walk = pytracer::walk_frames(frames, depth);
  return table.intern(frames, walk, key);
}
