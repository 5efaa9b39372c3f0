#include "fake_frame_walk.h"

#include <algorithm>

namespace {

using pytracer::RawFrame;

thread_local std::vector<RawFrame> t_frames;

struct Frames {
  using Frame = RawFrame;
  static constexpr bool kOwnInstructions = false;
  static Frame* outer(Frame* frame) {
    return frame == &t_frames.back() ? nullptr : frame + 1;
  }
  static const void* code(Frame* frame) { return frame->code; }
  static uint64_t instruction(Frame* frame) { return static_cast<uint64_t>(frame->offset); }
};

}  // namespace

void run_frames(std::vector<RawFrame> frames) { t_frames = std::move(frames); }

pytracer::RawFrame frame_at(uintptr_t code, int32_t offset) {
  return {reinterpret_cast<const void*>(code), offset};
}

namespace pytracer {

Following follow_frames(WalkMemo& memo, uint32_t depth, uint64_t seed) noexcept {
  if (t_frames.empty()) return Following::none;
  return memo.follow<Frames>(t_frames.data(), depth, seed) ? Following::same : Following::other;
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

pytracer::WalkKey key_here(uint32_t depth, uint64_t seed) {
  thread_local pytracer::WalkMemo memo;
  pytracer::follow_frames(memo, depth, seed);
  return memo.key();
}
