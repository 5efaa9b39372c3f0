// The state that an accelerator's allocator had, as its events tell it.
#pragma once

#include "view/view.h"

namespace pytracer {

// One device's segments and blocks, by address, from its live tables. A block that no segment has is a
// segment of its own. Throws std::bad_alloc.
AllocatorState restored_segments(const DeviceView& device);

}  // namespace pytracer
