#include "snapshot/annotations.h"

#include <algorithm>

namespace pytracer {

namespace {

bool is_before(const Annotation& a, const Annotation& b) {
  if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
  if (a.is_end != b.is_end) return a.is_end;
  return a.is_end ? a.opened > b.opened : a.opened < b.opened;
}

}  // namespace

std::vector<Annotation> annotations(const View& view, int64_t begin_ns) {
  std::vector<Annotation> result;
  const auto add = [&](int64_t begin, int64_t end, uint32_t number, bool is_step) {
    if (begin > view.end) return;
    const int64_t begin_time = std::max(WallClock::to_wall_ns(*view.clock, begin), begin_ns);
    const bool has_ended = end <= view.end;
    const int64_t end_time = has_ended ? WallClock::to_wall_ns(*view.clock, end) : INT64_MAX;
    if (end_time <= begin_time) return;  // it ended before `begin_ns`, or took no time
    result.push_back({begin_time, begin, number, is_step, false});
    if (has_ended) result.push_back({end_time, begin, number, is_step, true});
  };
  const size_t steps = view.steps.size();
  for (size_t i = 0; i < steps && steps > 1; ++i) {
    const auto& step = view.steps[i];
    const int64_t end = i + 1 < steps ? view.steps[i + 1].begin : Phases::kOpen;
    if (step.number != 0) add(step.begin, end, step.number, true);
  }
  for (const auto& span : view.phases.all) {
    if (view.shows(span.phase)) add(span.begin, span.end, span.phase, false);
  }
  std::sort(result.begin(), result.end(), is_before);
  return result;
}

}  // namespace pytracer
