// A cursor into the recorder: a tracer has one, so has each recording that stands in for torch's.
//
// 1. Sessions share rings and do not disturb each other: clear() moves the session's own cursor. If
//    sessions ask for different bounds, the largest one is recorded, and the others see less.
// 2. After stop() a session still shows what it had at that moment: its live blocks, and its events
//    as far as others have not overwritten them in the ring.
// 3. A session without history (start(false), pause()) sees the live blocks and no event, whatever
//    others record. When its history begins again, so do its events; blocks keep their stacks. With
//    start(…, true) the events so far stay, as far as others have not overwritten them, and with the
//    next history those that others have recorded since.
// 4. A paused session keeps the live blocks and asks for no stacks: blocks allocated meanwhile have
//    none, unless another session wants them.
// 5. Steps are a session's own: numbers that it gives to parts of its record. The last 16,384 are
//    kept; events before them belong to no step. Of live blocks the step is known in which they were
//    allocated, however long ago: at even distances, 2,048 steps or more are kept for that.
// 6. Control operations come one at a time, under the registry's control lock.
// 7. In a forked child a session of the parent is inert: it shows nothing and changes nothing. It
//    must not be destroyed there: another thread may have been in the middle of a change.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "session/registry.h"

namespace pytracer {

struct SessionOptions {
  std::vector<int> devices;  // PYTRACER_CPU_DEVICE, PYTRACER_HOST_DEVICE, accelerator indices
  uint32_t max_entries;      // of each device's ring
  uint32_t stack_depth;      // at most kMaxStackDepth
  uint64_t max_stack_bytes;  // of the stack table; the first session's value counts
  Context context;
  bool forward_stacks = false;  // of allocations in backward, if autograd's state can be read
};

class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(Session&&) = delete;

  // Methods that need memory throw Error (out of address space) or std::bad_alloc.
  // Does nothing while the session records the same. Known blocks stay known, unless it was stopped.
  // With `keeps_events`, so do the events so far, unless it was stopped or paused.
  void start(bool history = true, bool keeps_events = false);
  // Does nothing unless the session records.
  void pause();
  void stop();
  // Changes the options from now on, for events and blocks alike. A smaller
  // ring keeps the newest events.
  void change(uint32_t max_entries, uint32_t stack_depth, Context context);
  // Without `history` the view has no events. With a phase it has only the phase's events, and those
  // of phases within it.
  View view(bool history = true, uint16_t phase = 0);
  // The same without live blocks and allocator state, which needs no snapshot marker.
  View events();
  // Marks this instant on each device: the owners of memory that are read from now on are those of
  // blocks that the next view has with a smaller epoch.
  std::vector<DeviceLog::Mark> mark();
  // The live blocks of this instant, by address. Throws std::bad_alloc.
  std::map<int, std::vector<LiveBlock>> live_blocks();
  // The id of the stack of the live block that begins at an address; 0: none.
  uint32_t stack_of(uint64_t address);
  // Returns the view of this instant, which ends the session's window. The next window begins at the
  // same instant, so that each event belongs to exactly one. It begins, in `step` and not paused,
  // even if there is no memory for the view. If the session does not record: only the view.
  View end_window(bool history, uint32_t step);
  // The events that follow belong to this step; 0: to none. Before start() too. `replaces`: so do
  // those before, instead of to the steps that have begun.
  void begin_step(uint32_t number, bool replaces = false);
  void clear();
  // The table of its events' stack ids, pinned; null before start().
  std::shared_ptr<StackTable> stacks();
  // Keeps the stacks of events() until the next call, and as long as the result exists. Their view still
  // exists. Throws std::bad_alloc.
  StackTable::Generations keep_returned();
  SessionOptions options();
  const std::vector<int>& devices() const noexcept { return options_.devices; }  // they never change
  // Started and not stopped; true while paused too.
  bool recording() const noexcept { return mode_ != Mode::off && is_ours(); }
  // False in a child that was forked after the session was made.
  bool is_ours() const noexcept;

  struct DeviceStats {
    int device;
    uint64_t recorded, held, overwritten, ring_bytes, max_ring_bytes;
    uint64_t live_blocks, live_block_bytes, live_table_bytes, max_live_table_bytes;
    DeviceLog::Counts counts;
  };
  struct Stats {
    std::vector<DeviceStats> devices;
    StackTable::Stats stacks;
  };
  Stats stats();

  struct Wish {
    Mode mode;
    Context context;
    uint32_t stack_depth;
    uint32_t max_entries;  // also after the session has stopped, because it still shows events
    bool forward_stacks;
  };
  // What is to be recorded of a device for this session. For the registry, under the control lock.
  Wish wish(int device) const noexcept;

 private:
  struct Cursor {
    static constexpr uint64_t kOpen = UINT64_MAX;
    std::shared_ptr<DeviceLog> log;
    uint64_t begin = 0;
    uint64_t end = kOpen;  // numbers of events; without history, no event from here on is shown
    DeviceLog::Counts before{};
    bool has_events() const noexcept { return begin < end; }
    void move_to(const DeviceLog::Position& position) noexcept {
      begin = position.end;
      if (end != kOpen) end = begin;
      before = position.counts;
    }
  };
  struct Step {
    uint32_t number;
    int64_t ticks;
    std::vector<uint64_t> begins;  // its first event on each device
  };
  bool stopped() const noexcept { return mode_ == Mode::off && !final_captures_.empty(); }
  void set_mode(Mode mode, bool paused, bool keeps_events = false);
  struct Birth {
    uint32_t number;               // of a step
    std::vector<uint32_t> epochs;  // the least ones of blocks that it allocated, by device
  };
  void add_step(int64_t ticks, std::vector<uint64_t> begins);
  std::vector<uint32_t> add_birth();  // of blocks of the current step; returns its epochs
  void keep_last_step() { while (steps_.size() > 1) steps_.pop_front(); }
  View snapshot_view();
  // Where the session's record of a device ends.
  DeviceLog::Position position_of(size_t device) const;
  void add_devices(View& view, std::vector<DeviceLog::Capture> captures);
  DeviceView device_view(size_t device, DeviceLog::Capture capture) const;
  std::exception_ptr capture(std::vector<DeviceLog::Capture>& captures,
                             std::shared_ptr<const AllocatorState>& state) const;

  static constexpr size_t kMaxSteps = 16'384, kMaxBirths = 4'096;
  Registry& registry_;
  SessionOptions options_;  // under the control lock
  const uint64_t process_number_;
  bool registered_ = false;
  std::atomic<Mode> mode_{Mode::off};  // written under the control lock
  bool paused_ = false;                // in Mode::state
  std::vector<Cursor> cursors_;
  std::deque<Step> steps_;
  std::vector<Birth> births_;
  uint32_t birth_stride_ = 1, since_birth_ = 0;  // one of so many steps is kept; steps since the last
  uint32_t step_ = 0;
  int64_t begun_, ended_ = 0;  // the window; ticks
  std::vector<DeviceLog::Capture> final_captures_;  // once stopped, as the next; without rings
  std::shared_ptr<const AllocatorState> final_state_;
  StackTable::Generations final_stacks_;     // keeps the stacks of final_captures_
  StackTable::Generations returned_stacks_;  // keeps those of keep_returned()
  StackTable::Generations block_stack_;      // keeps that of the last stack_of()
  std::shared_ptr<StackTable> stacks_;
};

}  // namespace pytracer
