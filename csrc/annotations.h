// A snapshot's external_annotations: when phases and steps began and ended.
#pragma once

#include <cstdint>
#include <vector>

#include "owner.h"

namespace pytracer {

struct Annotation {
  int64_t time_ns;
  int64_t opened;   // ticks: of two that begin at once, the outer one was opened first
  uint32_t number;  // of the step or the phase
  bool is_step;
  bool ends;
};

// Of a view, from `begin_ns` (wall time) on and in order of time. What was under way then begins
// there; what is still under way does not end. A step is told where there is another.
std::vector<Annotation> annotations_of(const View& view, int64_t begin_ns);

}  // namespace pytracer
