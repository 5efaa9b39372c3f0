#include "annotations.h"

#include <algorithm>

namespace pytracer {

namespace {

struct Mark {
  int64_t time_ns;
  int64_t opened;  // ticks: of two that begin at once, the outer one was opened first
  std::string name;
  bool ends;
};

bool is_before(const Mark& a, const Mark& b) {
  if (a.time_ns != b.time_ns) return a.time_ns < b.time_ns;
  if (a.ends != b.ends) return a.ends;
  return a.ends ? a.opened > b.opened : a.opened < b.opened;
}

bool begins_within(const Phases::Spans& phases, int64_t ticks) {
  return std::any_of(phases.all.begin(), phases.all.end(), [&](const Phases::Span& span) {
    return span.begin < ticks && ticks < span.end;
  });
}

}  // namespace

std::vector<Annotation> annotations_of(const View& view, int64_t begin_ns) {
  std::vector<Mark> marks;
  const auto add = [&](int64_t begin, int64_t end, const auto& name) {
    if (begin > view.end) return;
    const int64_t first = WallClock::to_wall_ns(*view.clock, begin);
    const bool ended = end <= view.end;
    const int64_t last = ended ? WallClock::to_wall_ns(*view.clock, end) : 0;
    if (ended && last < begin_ns) return;
    marks.push_back({std::max(first, begin_ns), begin, name(), false});
    if (ended) marks.push_back({last, begin, name(), true});
  };
  for (size_t i = 0; i < view.steps.size(); ++i) {
    const View::Step& step = view.steps[i];
    if (step.number == 0 || begins_within(view.phases, step.begin)) continue;
    add(step.begin, i + 1 < view.steps.size() ? view.steps[i + 1].begin : Phases::kOpen,
        [&] { return "step " + std::to_string(step.number); });
  }
  const Phases& phases = Phases::instance();
  for (const Phases::Span& span : view.phases.all) {
    if (view.phase != 0 && !phases.is_within(span.phase, view.phase)) continue;
    add(span.begin, span.end, [&] { return std::string(phases.name(span.phase)); });
  }
  std::sort(marks.begin(), marks.end(), is_before);
  std::vector<Annotation> annotations;
  for (Mark& mark : marks) {
    annotations.push_back({mark.time_ns / 1000, std::move(mark.name), mark.ends});
  }
  return annotations;
}

}  // namespace pytracer
