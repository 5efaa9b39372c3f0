// What a process had recorded that is gone, or does not answer, as a view from which a snapshot is written.
#pragma once

#include "restore/box_reader.h"
#include "view/view.h"

namespace pytracer {

// What Python said last about the process (Registry::describe_box).
std::string description_of(const BoxReader& box);

// The step in which the process was; 0: none.
uint32_t last_step(const BoxReader& box);

// What a device has now, by its live tables.
struct DeviceNow {
  int device;
  uint64_t recorded;  // events
  uint64_t allocated_bytes, reserved_bytes;  // nothing is known to be reserved on the CPU
  uint64_t peak_bytes;                       // the most that was allocated since the ring's first event
};
std::vector<DeviceNow> devices_now(const BoxReader& box);

struct RestoreOptions {
  uint32_t stack_depth;  // the session's, as the next
  Context context;
  bool forward_stacks;
  bool is_same_boot;  // the clocks of the process and of this one agree
};

// The stack table. Node types and phases have numbers up to these. A node that is damaged, and what came after it,
// is left out.
std::shared_ptr<StackTable> restored_stacks(const BoxReader& box, size_t node_types, size_t phases);

// The state that one device's allocator had: segments and blocks, by address, from its live tables and events. A
// block that no segment has is a segment of its own. Throws std::bad_alloc.
AllocatorState restored_segments(const DeviceView& device);

// Events, live blocks and stacks as they were. The allocator's state is made from them: a segment has the
// stream and the pool of an event or of one of its blocks, if the ring still has that, and blocks have their
// rounded sizes. Without owners, phases' times, statistics and settings, which only the process could tell.
//
// Once in a process, which has recorded nothing: its names of phases and nodes become those of the box.
// Throws Error, IoError, std::bad_alloc.
View restored_view(const BoxReader& box, const RestoreOptions& options);

}  // namespace pytracer
