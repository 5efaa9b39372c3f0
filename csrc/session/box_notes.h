// What a box has besides logs and stacks: steps, clocks, names of phases and of autograd's nodes, and what
// Python says about the process.
//
// Under the registry's control lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "record/clock.h"
#include "support/intern_table.h"
#include "support/reserved_array.h"

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

}  // namespace pytracer
