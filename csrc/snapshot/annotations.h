// A snapshot's external_annotations: when phases and steps began and ended.
#pragma once

#include <cstdint>
#include <vector>

#include "view/view.h"

namespace pytracer {

struct Annotation {
  int64_t time_ns;
  int64_t opened;   // ticks: of two annotations that begin at once, the outer one was opened first
  uint32_t number;  // of the step or the phase
  bool is_step;
  bool is_end;
};

// The annotations of a view from `begin_ns` (wall time) on, in order of time. A phase or step that
// is open at `begin_ns` begins there; one that is open at the view's end has no end. Steps are
// written only if the view has more than one.
std::vector<Annotation> annotations(const View& view, int64_t begin_ns);

}  // namespace pytracer
