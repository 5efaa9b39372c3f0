// The stack table of a box.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "record/stack_table.h"
#include "restore/box_reader.h"

namespace pytracer {

// Node types and phases have numbers up to these. A node that is damaged, and what came after it, is left
// out.
std::shared_ptr<StackTable> restored_stacks(const BoxReader& box, size_t node_types, size_t phases);

}  // namespace pytracer
