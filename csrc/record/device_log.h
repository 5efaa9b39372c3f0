// The record of one device: its ring and its live tables, kept in agreement.
//
// 1. record() may be called by several threads; the writer lock makes them one writer. The lock is
//    held for the tables and the ring alone: the stack was walked before. An accelerator's threads
//    hardly ever meet there, because its allocator has a lock of its own.
// 2. A capture fixes the live tables and the ring at one instant. The tables are what a replay of the
//    events would give. So it is on the CPU, whose allocator has no state of its own to show, even if
//    an allocation finds the live table full: it gets no event. And if a free was missed, it is recorded
//    when its address is given out again. An accelerator's events are recorded as they come.
// 3. Events are in the order of time: the allocator reads its clock under its lock, or the log does. The
//    log reads the allocator's clock for record_oom(): an event that was made before and comes after it has
//    its time.
// 4. In Mode::state the live tables are kept as in Mode::on, but the ring is not written.
// 5. The request of a free is kept aside until the next event, which mostly completes it: then both are
//    written as one event. It is written before all else that uses the ring or the mode.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "record/device_names.h"
#include "record/event.h"
#include "record/live_table.h"
#include "record/ring_buffer.h"
#include "support/spin_lock.h"

namespace pytracer {

class StackTable;

// What is recorded of a device: the strongest wish of the sessions.
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
    uint64_t unknown_frees;   // of unknown blocks: older than the recording, or dropped
    uint64_t live_dropped;    // blocks and segments that found their live table full
    uint64_t labels_dropped;  // pools and labels that found their table full

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
  // Where the log is at one instant.
  struct Position {
    uint64_t end;  // sequence number after the last event
    std::shared_ptr<const RingBuffer> ring;
    std::shared_ptr<const DeviceNames> names;
    Counts counts;
    bool used;  // the device had an event other than the markers of snapshots
    uint64_t ever_dropped;  // live_dropped since the log exists
  };
  // An instant, to tell which blocks of a later capture were live since then.
  struct Mark {
    int device;
    uint32_t epoch;         // LiveTable::mark()
    uint64_t ever_dropped;  // as in Position
    bool used;              // as in Position
  };
  // The log's state with its live blocks and segments at one instant.
  struct Capture : Position {
    std::vector<LiveBlock> blocks;    // those alive, by address
    std::vector<LiveBlock> segments;  // by the address at which they were allocated or mapped
  };

  DeviceLog(int device, uint32_t max_entries, std::shared_ptr<Box> box = nullptr);

  int device() const noexcept { return device_; }
  // The events that the ring is for.
  uint32_t max_entries() const noexcept { return ring_->capacity() - (is_cpu() ? 0 : 1); }
  bool is_cpu() const noexcept { return device_ == PYTRACER_CPU_DEVICE; }
  Mode mode() const noexcept { return mode_.load(std::memory_order_acquire); }
  // Whether an event is to be recorded with the stack of its thread.
  bool wants_stack(uint8_t action) const noexcept {
    return (stack_actions_.load(std::memory_order_relaxed) >> action & 1) != 0;
  }

  // Any thread, in a hook. Not for the markers of snapshots. In device_log_record.h.
  void record(const pytracer_event& given, uint8_t action, uint32_t stack, uint16_t phase) noexcept;
  // Any thread, in a hook. With `capture`, the capture begins at this marker of a snapshot, and does not
  // have it; finish_capture() has to follow, outside the hook.
  void record_marker(const pytracer_event& marker, uint16_t phase, Capture* capture) noexcept;

  // Any thread, in a HookScope but not in a hook. Records an out-of-memory without a stack. `now`: the clock of
  // the device's other events; null: the log's own.
  void record_oom(pytracer_event oom, uint16_t phase, int64_t (*now)()) noexcept;

  // Any thread, in a HookScope but not in a hook. Notes that a tensor is used whose storage begins
  // at an address, if a known block does and events are recorded; a role that is kept, at the free.
  void note_use(uint64_t address, TensorRole role) noexcept;

  // Brings a part of the stacks that the log refers to into the table's newest generation. A series of
  // calls does so with every stack that the log had at the first call. Any thread, in a hook.
  struct StackScan {
    enum Part { blocks, segments, ring, done } part = blocks;
    uint32_t entry = 1;
    uint64_t next = 0, end = 0;  // events of the ring
  };
  void renew_stacks(StackScan& scan, StackTable& stacks) noexcept;

  // Control thread (under the registry's control lock), all below.
  // The live tables start empty when the mode was off: frees were not seen meanwhile.
  void set_mode(Mode mode, Context context);
  // Makes the ring that large or small. It keeps as many of the newest events as fit; who reads the ring
  // that it replaces shares it. Throws Error or std::bad_alloc.
  void resize_ring(uint32_t max_entries);
  Position position() noexcept;
  Mark mark() noexcept;
  // The id of the stack of the live block that begins at an address; 0: none.
  uint32_t stack_of(uint64_t address) noexcept;
  // Begins a capture of this instant.
  void begin_capture(Capture& capture) noexcept;
  // Once for each capture that was begun. On std::bad_alloc the capture is incomplete.
  void finish_capture(Capture& capture);
  // The uses of tensors that were noted between two events, in order. Throws std::bad_alloc.
  std::vector<TensorUse> uses(uint64_t begin, uint64_t end);
  std::shared_ptr<const RingBuffer> ring() const noexcept { return ring_; }
  const LiveTable& live() const noexcept { return tables_->blocks; }

 private:
  struct Tables {
    explicit Tables(const DeviceLog& log)
        : blocks(kMaxLiveBlocks, log.part(BoxKind::blocks)),
          segments(kMaxLiveSegments, log.part(BoxKind::segments)) {}
    LiveTable blocks, segments;
  };
  BoxPart part(BoxKind kind) const { return {box_, kind, device_}; }
  // An accelerator's ring has room for the marker that follows a capture.
  uint32_t ring_capacity(uint32_t max_entries) const noexcept {
    return is_cpu() ? max_entries : max_entries + 1;
  }
  // All under the writer lock.
  struct Known {  // about an event once the tables have taken it in
    uint64_t packed_size;
    uint32_t alloc_stack;
    bool is_recorded;
  };
  void write(const pytracer_event& given, uint8_t action, uint32_t stack, uint16_t phase) noexcept;
  // The events of a log have to be made in the order in which they are written.
  Event event(const pytracer_event& given, uint8_t action, uint64_t packed_size, uint32_t stack,
              uint32_t alloc_stack, uint16_t phase) noexcept;
  int64_t ticks_of(const pytracer_event& given) noexcept;
  // Writes the request that is kept aside as an event with this action: kFreeAtOnce, if it is completed.
  void write_requested(uint8_t action) noexcept;
  // If there is one, as an event of its own.
  __attribute__((cold, noinline)) void write_requested_alone() noexcept;
  __attribute__((cold)) void write_without_ring(const pytracer_event& given, uint8_t action,
                                                uint32_t stack, uint16_t phase) noexcept;
  Known update_tables(const pytracer_event& given, uint8_t action, uint32_t stack,
                      uint16_t phase) noexcept;
  __attribute__((cold)) uint32_t update_segments(const pytracer_event& given,
                                                 uint32_t stack) noexcept;
  __attribute__((cold)) void note_role(const LiveBlock& freed) noexcept;
  __attribute__((cold)) void record_missed_free(const pytracer_event& allocation, uint16_t phase,
                                                const LiveBlock& missed) noexcept;
  uint64_t with_birth(uint64_t size, const LiveBlock& freed) const noexcept {
    return size | uint64_t{tables_->blocks.birth(freed)} << Event::kBirthShift;
  }
  uint16_t metadata_of(const pytracer_event& given) noexcept {
    return given.labels == nullptr ? uint16_t{0} : names_->intern_labels(*given.labels);
  }
  static void increment(std::atomic<uint64_t>& counter) noexcept {
    // One writer: no read-modify-write instruction needed.
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  Position position_locked() noexcept;
  __attribute__((cold)) void begin_capture_locked(Capture& capture) noexcept;

  const int device_;
  const std::shared_ptr<Box> box_;
  std::atomic<Mode> mode_{Mode::off};
  std::atomic<uint32_t> stack_actions_{0};  // a bit for each action
  // Guards all below. The control thread, which alone replaces ring_ and tables_, reads these without it.
  alignas(64) SpinLock writer_lock_;
  std::shared_ptr<RingBuffer> ring_;
  std::unique_ptr<Tables> tables_;
  std::shared_ptr<DeviceNames> names_;
  TensorUses uses_;
  Event requested_{};  // the request that is kept aside; its ticks are 0: there is none
  bool used_ = false;
  int64_t last_ticks_ = 0;  // of the recorder's clock
  int64_t oom_ticks_ = 0;   // that record_oom() has read from the allocator's clock
  std::atomic<uint64_t> unknown_frees_{0};
  std::atomic<uint64_t> live_dropped_{0};
};

}  // namespace pytracer
