#include "view/allocator_state.h"

#include <new>
#include <utility>

namespace pytracer {

namespace {

struct Gathering {
  AllocatorState state;
  bool out_of_memory = false;
};

// The hook calls this, and no exception may pass through the hook.
template <class Work>
void without_exceptions(void* context, Work work) noexcept {
  auto& gathering = *static_cast<Gathering*>(context);
  try {
    work(gathering.state);
  } catch (const std::bad_alloc&) {
    gathering.out_of_memory = true;
  }
}

void add_segment(void* context, const pytracer_segment* segment) noexcept {
  without_exceptions(context, [&](AllocatorState& state) {
    state.segments.push_back({*segment, state.blocks.size()});
    state.segments.back().about.blocks = nullptr;
    state.blocks.insert(state.blocks.end(), segment->blocks,
                        segment->blocks + segment->block_count);
  });
}

void add_setting(void* context, const pytracer_setting* setting) noexcept {
  const auto text = [](const char* given) { return given != nullptr ? given : ""; };
  without_exceptions(context, [&](AllocatorState& state) {
    state.settings.push_back(
        {*setting, text(setting->group), setting->key, text(setting->text)});
  });
}

void add_statistics(void* context, const pytracer_statistics* statistics) noexcept {
  without_exceptions(context,
                     [&](AllocatorState& state) { state.statistics.push_back(*statistics); });
}

}  // namespace

void AllocatorState::add(AllocatorState other) {
  for (Segment& segment : other.segments) segment.first_block += blocks.size();
  segments.insert(segments.end(), other.segments.begin(), other.segments.end());
  blocks.insert(blocks.end(), other.blocks.begin(), other.blocks.end());
  if (problem.empty()) problem = std::move(other.problem);
}

AllocatorState allocator_state(const pytracer_hook& hook) {
  Gathering gathering;
  const pytracer_state_sink sink = {&gathering, &add_segment, &add_setting, &add_statistics};
  char message[512] = "";
  const bool failed = hook.snapshot(&sink, message, sizeof(message)) != PYTRACER_DONE;
  if (!failed && !gathering.out_of_memory) return std::move(gathering.state);
  AllocatorState empty;
  empty.problem = failed ? message : "out of memory";
  return empty;
}

}  // namespace pytracer
