#include "fake_frame_walk.h"


namespace {

using pytracer::RawFrame;

thread_local std::vector<RawFrame> t_frames;

struct FrameAccess {
  using FramePointer = RawFrame*;
  static RawFrame* outer(RawFrame* frame) {
    return frame == &t_frames.back() ? nullptr : frame + 1;
  }
  static uint64_t place(RawFrame* frame) {
    return (reinterpret_cast<uint64_t>(frame->code) << 32) + static_cast<uint64_t>(frame->offset);
  }
};

std::string_view in_buffer(const std::string& text, pytracer::NameBuffer& buffer) {
  if (text.size() > sizeof(buffer.bytes)) return {};
  return {buffer.bytes, text.copy(buffer.bytes, sizeof(buffer.bytes))};
}

}  // namespace

std::string folder_of_files;

void run_frames(std::vector<RawFrame> frames) { t_frames = std::move(frames); }

pytracer::RawFrame frame_at(uintptr_t code, int32_t offset) {
  return {reinterpret_cast<const void*>(code), offset, false};
}

namespace pytracer {

uint32_t find_stack(WalkMemo& memo, uint32_t depth, uint64_t seed, bool is_same_call) noexcept {
  if (t_frames.empty()) return 0;
  return memo.find<FrameAccess>(t_frames.data(), depth, seed, is_same_call);
}

bool runs_python(WalkMemo&) noexcept { return !t_frames.empty(); }

RawFrame read_frame(const void* frame) noexcept { return *static_cast<const RawFrame*>(frame); }

std::string frame_walk_problem() { return {}; }
void watch_code(void (*)(const void*)) {}
int32_t code_line(const void* code, int32_t offset) noexcept {
  return static_cast<int32_t>(reinterpret_cast<uintptr_t>(code) % 1000) + offset;
}
std::string_view code_name(const void* code, NameBuffer& buffer) noexcept {
  const auto number = reinterpret_cast<uintptr_t>(code);
  return in_buffer(number == kEngineCode ? "_engine_run_backward" : "f" + std::to_string(number), buffer);
}
std::string_view code_filename(const void* code, NameBuffer& buffer) noexcept {
  if (folder_of_files.empty()) return "file.py";
  return in_buffer(folder_of_files + std::to_string(reinterpret_cast<uintptr_t>(code)) + ".py", buffer);
}

}  // namespace pytracer
