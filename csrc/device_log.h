// What is recorded of one device: its ring and its live tables, kept in agreement.
//
// 1. record() may be called by several threads; the writer lock makes them one writer. It is held
//    for the tables and the ring alone: the stack was walked before.
// 2. The live table is always what a replay of the events would give: a cut fixes both at one
//    instant. On the CPU, whose allocator has no state of its own to show, a free that was missed
//    is made up for when its address is given out again, and what the table has no place for is
//    left out of the ring too. An accelerator's events are recorded as they come.
// 3. Events are in order of time.
// 4. In Mode::state the live tables are kept as in Mode::on, but the ring is not written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device_names.h"
#include "event.h"
#include "live_table.h"
#include "ring_buffer.h"
#include "spin_lock.h"

namespace pytracer {

// What a device records; the strongest wish of its owners.
enum class Mode : uint8_t {
  off,    // nothing
  state,  // live tables
  on,     // live tables and ring
};

constexpr uint32_t kMaxLiveBlocks = 1u << 20;
constexpr uint32_t kMaxLiveSegments = 1u << 17;

class DeviceLog {
 public:
  struct Counts {
    uint64_t unknown_frees;   // of blocks not known: older than the recording, dropped
    uint64_t live_dropped;    // blocks and segments that found their live table full
    uint64_t labels_dropped;  // pools and labels that found no place

    void add(const Counts& other) noexcept {
      unknown_frees += other.unknown_frees;
      live_dropped += other.live_dropped;
      labels_dropped += other.labels_dropped;
    }
    void subtract(const Counts& other) noexcept {
      unknown_frees -= other.unknown_frees;
      live_dropped -= other.live_dropped;
      labels_dropped -= other.labels_dropped;
    }
  };
  struct Cut {
    uint64_t end;  // sequence number after the last event
    std::shared_ptr<const RingBuffer> ring;
    std::shared_ptr<const DeviceNames> names;
    std::vector<LiveBlock> live;      // by address
    std::vector<LiveBlock> segments;  // by the address they were allocated or mapped at
    Counts counts;
    bool used;  // the device has done more than mark snapshots
  };

  DeviceLog(int device, uint32_t ring_capacity);

  int device() const noexcept { return device_; }
  bool is_cpu() const noexcept { return device_ == PYTRACER_CPU_DEVICE; }
  Mode mode() const noexcept { return mode_.load(std::memory_order_acquire); }
  // Whether an event is to be recorded with the stack of its thread.
  bool wants_stack(uint8_t action) const noexcept {
    return (stack_actions_.load(std::memory_order_relaxed) >> action & 1) != 0;
  }

  // Any thread, in a hook. With `cut`, the event is where a cut begins: finish_cut() follows, not
  // in the hook.
  void record(const pytracer_event& given, uint32_t stack, uint16_t phase, Cut* cut) noexcept;

  // Control thread (under the recorder's control lock), all below.
  // From off to anything else the live tables start empty: what went meanwhile was not seen.
  void set_mode(Mode mode, Context context);
  void ensure_ring(uint32_t capacity);
  // Where the log is now: a cut without its blocks.
  Cut position() noexcept;
  // The state of this instant.
  void begin_cut(Cut& cut) noexcept;
  // Once for each cut that was begun. Throws std::bad_alloc: the cut is without its blocks then.
  void finish_cut(Cut& cut);
  std::shared_ptr<const RingBuffer> ring() const noexcept { return ring_; }
  const LiveTable& live() const noexcept { return tables_->blocks; }

 private:
  struct Tables {
    LiveTable blocks{kMaxLiveBlocks};
    LiveTable segments{kMaxLiveSegments};
  };
  // All under the writer lock.
  struct Known {  // of an event, once it is noted
    uint64_t size;
    uint32_t alloc_stack;
    bool is_recorded;
  };
  Known note(const pytracer_event& given, int64_t ticks, uint32_t stack, uint16_t phase) noexcept;
  uint32_t note_segment(const pytracer_event& given, int64_t ticks, uint32_t stack,
                        uint16_t phase) noexcept;
  void note_missed_free(const pytracer_event& allocation, int64_t ticks, uint16_t phase,
                        const LiveBlock& gone) noexcept;
  Cut position_locked() const noexcept;
  void begin_cut_locked(Cut& cut) noexcept;

  const int device_;
  std::atomic<Mode> mode_{Mode::off};
  std::atomic<uint32_t> stack_actions_{0};  // a bit for each action
  SpinLock writer_lock_;  // all below
  std::shared_ptr<RingBuffer> ring_;
  std::unique_ptr<Tables> tables_;
  std::shared_ptr<DeviceNames> names_;
  bool used_ = false;
  std::atomic<uint64_t> unknown_frees_{0};
  std::atomic<uint64_t> live_dropped_{0};
};

}  // namespace pytracer
