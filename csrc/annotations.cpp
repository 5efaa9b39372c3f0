#include "annotations.h"

#include <algorithm>

namespace pytracer {

namespace {

bool is_before(const Annotation& a, const Annotation& b) {
  if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
  if (a.ends != b.ends) return a.ends;
  return a.ends ? a.opened > b.opened : a.opened < b.opened;
}

}  // namespace

std::vector<Annotation> annotations_of(const View& view, int64_t begin_ns) {
  std::vector<Annotation> annotations;
  const auto add = [&](int64_t begin, int64_t end, uint32_t number, bool is_step) {
    if (begin > view.end) return;
    const int64_t first = std::max(WallClock::to_wall_ns(*view.clock, begin), begin_ns);
    const bool ended = end <= view.end;
    const int64_t last = ended ? WallClock::to_wall_ns(*view.clock, end) : INT64_MAX;
    if (last <= first) return;  // over before, or in no time
    annotations.push_back({first, begin, number, is_step, false});
    if (ended) annotations.push_back({last, begin, number, is_step, true});
  };
  const size_t steps = view.steps.size();
  for (size_t i = 0; i < steps && steps > 1; ++i) {
    const View::Step& step = view.steps[i];
    const int64_t end = i + 1 < steps ? view.steps[i + 1].begin : Phases::kOpen;
    if (step.number != 0) add(step.begin, end, step.number, true);
  }
  for (const Phases::Span& span : view.phases.all) {
    if (view.shows(span.phase)) add(span.begin, span.end, span.phase, false);
  }
  std::sort(annotations.begin(), annotations.end(), is_before);
  return annotations;
}

}  // namespace pytracer
