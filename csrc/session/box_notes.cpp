#include "session/box_notes.h"

#include <cstring>

#include "record/node_types.h"
#include "record/phases.h"

namespace pytracer {

BoxNotes::BoxNotes(const std::shared_ptr<Box>& box)
    : steps_(kMostSteps, {box, BoxKind::steps}), clock_(kMostPairs, {box, BoxKind::clock}),
      accelerator_clock_(kMostPairs, {box, BoxKind::accelerator_clock}),
      phases_(1 << 21, UINT16_MAX, {box, BoxKind::phases}),
      node_types_(1 << 17, UINT16_MAX, {box, BoxKind::node_types}),
      description_(2 * size_t{kMaxDescription}, {box, BoxKind::description}) {
  Phases::instance().note_in(&phases_);
  NodeTypes::instance().note_in(&node_types_);
}

BoxNotes::~BoxNotes() {
  Phases::instance().note_in(nullptr);
  NodeTypes::instance().note_in(nullptr);
}

void BoxNotes::describe(std::string_view text) noexcept {
  const uint64_t half = (description_.count() & 1) ^ 1;
  const size_t begin = half * kMaxDescription;
  const size_t size = std::min<size_t>(text.size(), kMaxDescription);
  if (description_.back(begin + size) < begin + size) return;
  if (size > 0) std::memcpy(&description_[begin], text.data(), size);
  description_.set_count(uint64_t{size} << 1 | half);
}

}  // namespace pytracer
