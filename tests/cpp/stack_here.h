// The stacks of a table, as tests make and read them.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "fake_frame_walk.h"
#include "record/stack_table.h"

// This thread's stack, as Recorder finds or interns it for an event.
inline uint32_t stack_here(pytracer::StackTable& table, uint32_t depth = 32) {
  thread_local pytracer::WalkMemo memo;
  uint32_t stack = pytracer::kUnknownStack;
  while (stack == pytracer::kUnknownStack) {
    stack = pytracer::find_stack(memo, depth, table.seed(), false);
    if (stack == pytracer::kUnknownStack) stack = table.find_or_intern(memo);
  }
  return stack;
}

// Its frames, innermost first.
inline pytracer::CallTree::Frames frames_of(const pytracer::StackTable& table, uint32_t stack,
                                            uint32_t depth = pytracer::kMaxStackDepth) {
  return table.generation_of(stack)->frames(stack, depth);
}
// One of them, counted from the innermost one.
inline const pytracer::CallTree::Frame& frame_of(const pytracer::StackTable& table, uint32_t stack,
                                                 uint32_t index) {
  return table.generation_of(stack)->frame(frames_of(table, stack).innermost_first[index]);
}
inline std::string name_of(const pytracer::StackTable& table, uint32_t stack) {
  const auto tree = table.generation_of(stack);
  return std::string(tree->text(tree->name(frame_of(table, stack, 0))));
}
inline std::string filename_of(const pytracer::StackTable& table, uint32_t stack) {
  const auto tree = table.generation_of(stack);
  return std::string(tree->text(tree->filename(frame_of(table, stack, 0))));
}

// Stacks whose numbers are in their instructions, so that a stack that is read shows which one it is.
constexpr uint64_t kFrames = 6, kDigits = 16;
inline void run_stack(uint64_t number) {
  std::vector<pytracer::RawFrame> frames;
  for (uint64_t i = 0; i < kFrames; ++i, number /= kDigits) {
    frames.push_back(frame_at(1 + i, static_cast<int32_t>(number % kDigits)));
  }
  run_frames(frames);
}
inline uint64_t number_of(const pytracer::StackTable& stacks, uint32_t id) {
  const auto tree = stacks.generation_of(id);
  CHECK(tree != nullptr);
  const std::vector<uint32_t> frames = tree->frames(id, pytracer::kMaxStackDepth).innermost_first;
  CHECK(frames.size() == kFrames);
  uint64_t number = 0, power = 1;
  for (const uint32_t frame : frames) {
    number += power * static_cast<uint64_t>(tree->frame(frame).offset);
    power *= kDigits;
  }
  return number;
}
