// A snapshot's external_annotations: when phases and steps began and ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "owner.h"

namespace pytracer {

struct Annotation {
  int64_t time_us;
  std::string name;
  bool ends;
};

// Of a view, from `begin_ns` (wall time) on and in order of time. What was under way then begins
// there; what is still under way does not end. A step's name is "step " and its number. Readers take
// what began last for the innermost: a step that begins within a phase is left out, or what is of
// the phase alone would pass for the step's.
std::vector<Annotation> annotations_of(const View& view, int64_t begin_ns);

}  // namespace pytracer
