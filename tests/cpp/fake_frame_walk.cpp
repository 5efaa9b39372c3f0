#include "fake_frame_walk.h"

#include <algorithm>

namespace {
thread_local std::vector<pytracer::RawFrame> t_frames;
}

void run_frames(std::vector<pytracer::RawFrame> frames) { t_frames = std::move(frames); }

pytracer::RawFrame frame_at(uintptr_t code, int32_t offset) {
  return {reinterpret_cast<const void*>(code), offset};
}

namespace pytracer {

WalkKey walk_key(uint32_t depth, uint64_t seed) noexcept {
  uint64_t a = seed, b = ~seed;
  const uint32_t frames = std::min(depth, static_cast<uint32_t>(t_frames.size()));
  for (uint32_t i = 0; i < frames; ++i) {
    a = (a ^ reinterpret_cast<uint64_t>(t_frames[i].code)) * 0x9e3779b97f4a7c15ull;
    b = (b ^ static_cast<uint64_t>(t_frames[i].offset)) * 0xc2b2ae3d27d4eb4full;
  }
  if (t_frames.size() > depth) a = ~a;
  return {a ^ (a >> 29), b ^ (b >> 31), frames};
}

Walk walk_frames(RawFrame* out, uint32_t depth) noexcept {
  const uint32_t frames = std::min(depth, static_cast<uint32_t>(t_frames.size()));
  std::copy_n(t_frames.begin(), frames, out);
  return {frames, t_frames.size() > depth, true};
}

std::string frame_walk_problem() { return {}; }
bool watch_code(void (*)(const void*)) { return true; }
int32_t code_line(const void* code, int32_t offset) noexcept {
  return static_cast<int32_t>(reinterpret_cast<uintptr_t>(code) % 1000) + offset;
}
std::string code_name(const void* code) {
  return "f" + std::to_string(reinterpret_cast<uintptr_t>(code));
}
std::string code_filename(const void*) { return "file.py"; }

}  // namespace pytracer
