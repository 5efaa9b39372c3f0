// What a forked child does to the recorder and the registry.
//
// Other threads of the parent may have been in the middle of a change when the child was copied. So
// the child destroys nothing of what they may have been changing: logs and stack table are leaked
// (their pages are not even copied), and new objects take the places of the old ones.
#include <new>

#include "record/thread_slot.h"
#include "session/registry.h"

namespace pytracer {

void Registry::after_fork_in_child() noexcept {
  Registry& registry = instance();
  Box::after_fork_in_child();
  registry.recorder_.reset_after_fork();
  new (&registry.control_) std::mutex;
  // A device that was in use is lost to the child, and its lock may be held for ever.
  registry.accelerator_ = nullptr;
  new (&registry.accelerator_clock_) std::optional<WallClock>();
  new (&registry.clock_) WallClock(&now_ticks);
  new (&registry.sessions_) std::vector<Session*>();
  new (&registry.logs_) std::vector<std::shared_ptr<DeviceLog>>();
  new (&registry.stacks_) std::shared_ptr<StackTable>();
  new (&registry.box_) std::shared_ptr<Box>();
  new (&registry.notes_) std::unique_ptr<BoxNotes>();
  new (&registry.keeper_) std::unique_ptr<Keeper>();
  registry.process_number_.fetch_add(1, std::memory_order_relaxed);
  reset_thread_slots_after_fork();
}

}  // namespace pytracer
