// What a box has besides logs and stacks: steps, clocks, names of phases and of autograd's nodes, and what
// Python says about the process.
//
// Under the registry's control lock, but for the keeper, which has a thread of its own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "record/clock.h"
#include "record/stack_table.h"

namespace pytracer {

// The beginning of a step on one device.
struct BoxStep {
  uint64_t begin;  // number of its first event
  int64_t ticks;   // now_ticks()
  uint32_t number;
  int32_t device;
  uint32_t epoch;  // the least one of blocks that it allocated
};

class BoxNotes {
 public:
  // The last ones are kept: 32 and 16 bytes each.
  static constexpr uint32_t kMostSteps = 1u << 16, kMostPairs = 1u << 12;
  static constexpr uint32_t kMaxDescription = 1u << 18;

  // Throws Error or std::bad_alloc.
  explicit BoxNotes(const std::shared_ptr<Box>& box);
  ~BoxNotes();
  BoxNotes(BoxNotes&&) = delete;

  void note_step(const BoxStep& step) noexcept { steps_.enter(step); }
  void forget_steps() noexcept { steps_.set_count(0); }
  void note_clock(const WallClock::Pair& pair) noexcept { clock_.enter(pair); }
  void note_accelerator_clock(const WallClock::Pair& pair) noexcept { accelerator_clock_.enter(pair); }
  // Replaces the description, at most kMaxDescription bytes. Empty: the process has written all that it has
  // to say, and nobody needs the box.
  void describe(std::string_view text) noexcept;

 private:
  ReservedArray<BoxStep> steps_;
  ReservedArray<WallClock::Pair> clock_, accelerator_clock_;
  InternTable phases_, node_types_;
  ReservedArray<char> description_;  // two; count: the size of the present one, and which it is
};

// A thread that does what hooks need done and what may wait for a disk: it takes space of the box's file ahead,
// and makes and destroys generations of stacks.
//
// 1. It sleeps until a hook wakes it (Box::wake()), which never waits.
// 2. It takes no signal, and needs neither the GIL nor a lock that is held while something waits for it.
// 3. If there can be no thread, hooks do the work themselves.
// 4. A forked child has no such thread, nor its box.
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
