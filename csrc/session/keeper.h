// A thread that does what hooks need done and what may wait for a disk: it takes space of the box's file ahead,
// and makes and destroys generations of stacks.
//
// 1. It sleeps until a hook wakes it (Box::wake()), which never waits.
// 2. It takes no signal, and needs neither the GIL nor a lock that is held while something waits for it.
// 3. If there can be no thread, hooks do the work themselves.
// 4. A forked child has no such thread, nor its box.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "record/stack_table.h"
#include "support/box.h"

namespace pytracer {

class Keeper {
 public:
  explicit Keeper(std::shared_ptr<Box> box);
  ~Keeper();  // waits for the thread; no hook uses the box any more
  Keeper(Keeper&&) = delete;

  void look_after(std::shared_ptr<StackTable> stacks) noexcept;

 private:
  void run() noexcept;

  const std::shared_ptr<Box> box_;
  std::mutex mutex_;  // guards stacks_
  std::shared_ptr<StackTable> stacks_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace pytracer
