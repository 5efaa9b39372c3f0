// Someone who records: a tracer, a window, a session that stands in for torch's recorder.
//
// 1. An owner is a cursor into shared rings. Owners do not disturb each other: clear() moves the
//    owner's own cursor, and where owners ask for different bounds the largest one is recorded and
//    the others' are cut at export.
// 2. After stop() an owner still gives what it had at that moment, as far as others have not
//    overwritten it in the ring; the live blocks are kept with it.
// 3. An owner without history (start(false), pause()) sees the live blocks and no event, whatever
//    others record. When its history begins again, so do its events; blocks keep their stacks.
// 4. While paused, an owner keeps what is known of the blocks alive, and asks for no stacks: blocks
//    allocated meanwhile have none, unless another owner wants them.
// 5. Steps are an owner's own: numbers that it gives to stretches of its record. The last 16,384 are
//    known; events before them are of none.
// 6. Control operations come one at a time, under the recorder's control lock.
// 7. In a forked child an owner of the parent is inert: it gives nothing and changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "recorder.h"

namespace pytracer {

struct OwnerOptions {
  std::vector<int> devices;  // PYTRACER_CPU_DEVICE or accelerator indices
  uint32_t max_entries;      // of each device's ring
  uint32_t stack_depth;      // at most kMaxStackDepth
  uint64_t max_stack_bytes;  // of the stack table; the first owner's counts
  Context context;
};

// What an owner sees of one device at one instant.
struct DeviceView {
  int device;
  uint64_t begin;   // first event that is the owner's
  uint64_t first;   // first of those that is still in the ring and within max_entries
  DeviceLog::Cut cut;
  std::shared_ptr<const WallClock::Pairs> clock;  // that the events' ticks are of
  struct Step {
    uint32_t number;
    uint64_t begin;  // its first event
  };
  std::vector<Step> steps;  // in order; events before the first are of none
  bool is_cpu() const noexcept { return device == PYTRACER_CPU_DEVICE; }
  uint64_t overwritten() const noexcept { return first - begin; }
};

// What an owner sees of everything at one instant (each device at an instant of its own). Shares
// what it needs: it outlives the owner.
struct View {
  OwnerOptions options;
  std::vector<DeviceView> devices;
  std::shared_ptr<StackTable> stacks;
  std::shared_ptr<const AllocatorState> state;  // of the accelerators; null in events()
  uint16_t phase = 0;  // events of others are not shown; 0: all are
  bool shows(uint16_t of_phase) const {
    return phase == 0 || Phases::instance().is_within(of_phase, phase);
  }

  // What was entered and begun meanwhile; not in events().
  struct Step {
    uint32_t number;
    int64_t begin;  // now_ticks(), as all that follows
  };
  std::vector<Step> steps;
  Phases::Spans phases;
  int64_t begin = 0, end = 0;  // no event of it is outside
  std::shared_ptr<const WallClock::Pairs> clock;  // of now_ticks()
};

class Owner {
 public:
  explicit Owner(OwnerOptions options);
  ~Owner();
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  // Throw Error (out of address space) or std::bad_alloc.
  // Does nothing while it records the same; blocks known go on being known, unless it was stopped.
  void start(bool history = true);
  // Does nothing while it does not record.
  void pause();
  void stop();
  // Other wishes, from now on, for events and blocks alike. The ring never shrinks.
  void change(uint32_t max_entries, uint32_t stack_depth, Context context);
  // Without `history`: no event is in it. With a phase: only its events, and of those within it.
  View view(bool history = true, uint16_t phase = 0);
  // The same without live blocks and the allocator's state: no snapshot marker is needed for it.
  View events();
  // The view of this instant; it ends the owner's window, and the next begins: no event is in both,
  // or in neither. With or without history, not paused, and in this step. The next begins if there
  // is no memory for the view, too. Only the view of an owner that does not record.
  View turn(bool history, uint32_t step);
  // What follows is of this step; 0: of none. Before start() too.
  void begin_step(uint32_t number);
  // What the stack ids of its events stand for; null before start().
  std::shared_ptr<StackTable> stacks();

  void clear();
  OwnerOptions options();
  // Started and not stopped; paused too.
  bool recording() const noexcept { return mode_ != Mode::off && is_ours(); }
  // False in a child forked after the owner was made.
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

 private:
  friend class Recorder;
  struct Cursor {
    std::shared_ptr<DeviceLog> log;
    uint64_t begin;
    DeviceLog::Counts before;
    void move_to(const DeviceLog::Cut& position) noexcept {
      begin = position.end;
      before = position.counts;
    }
  };
  bool stopped() const noexcept { return mode_ == Mode::off && !final_cuts_.empty(); }
  // What it wants to be recorded.
  Context wished_context() const noexcept;
  void record(Mode mode, bool paused);
  void add_step(int64_t ticks, std::vector<uint64_t> begins);
  void forget_steps();  // but for the last: they were over when the window began
  View snapshot_view();
  // Where this owner's record of a device ends, without its blocks.
  DeviceLog::Cut position_of(size_t device) const;
  void complete(View& view, std::vector<DeviceLog::Cut> cuts);
  DeviceView view_of(size_t device, DeviceLog::Cut cut) const;
  std::exception_ptr cut(std::vector<DeviceLog::Cut>& cuts,
                         std::shared_ptr<const AllocatorState>& state) const;

  Recorder& recorder_;
  OwnerOptions options_;  // under the control lock
  const uint64_t process_number_;
  bool registered_ = false;
  std::atomic<Mode> mode_{Mode::off};  // written under the control lock
  bool paused_ = false;                // in Mode::state
  std::vector<Cursor> cursors_;
  struct Step {
    uint32_t number;
    int64_t ticks;
    std::vector<uint64_t> begins;  // its first event on each device
  };
  static constexpr size_t kMaxSteps = 16'384;
  std::deque<Step> steps_;
  uint32_t step_ = 0;
  int64_t begun_, ended_ = 0;  // the window; ticks
  std::vector<DeviceLog::Cut> final_cuts_;  // once stopped, as the next
  std::shared_ptr<const AllocatorState> final_state_;
  std::shared_ptr<StackTable> stacks_;
};

}  // namespace pytracer
