// What is recorded of one device: its ring and its live table, kept in agreement.
//
// 1. record() may be called by several threads; the writer lock makes them one writer. It is held
//    for the table and the ring alone: the stack was walked before.
// 2. The live table is always what a replay of the events would give: cut() fixes both at one
//    instant. A free that was missed is made up for when its address is given out again.
// 3. Events are in order of time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "event.h"
#include "live_table.h"
#include "ring_buffer.h"
#include "spin_lock.h"

namespace pytracer {

// What a device records; the strongest wish of its owners.
enum class Mode : uint8_t {
  off = 0,  // nothing
  on = 1,   // live table and ring
};

constexpr uint32_t kMaxLiveBlocks = 1u << 20;

class DeviceLog {
 public:
  struct Counts {
    uint64_t unknown_frees;  // of blocks not known (older than the recording, dropped): left out
    uint64_t live_dropped;   // allocations the full live table had no place for: left out
  };
  struct Cut {
    uint64_t end;  // sequence number after the last event
    std::shared_ptr<const RingBuffer> ring;
    std::vector<LiveBlock> live;  // by address
    Counts counts;
  };

  DeviceLog(int device, uint32_t ring_capacity);

  int device() const noexcept { return device_; }
  Mode mode() const noexcept { return mode_.load(std::memory_order_acquire); }
  Context context() const noexcept { return context_.load(std::memory_order_relaxed); }

  // Any thread, in a hook. `event` complete but for what the live table knows.
  void record(Event& event) noexcept;

  // Control thread (under the recorder's control lock), all below.
  // From off to anything else the live table starts empty: what went meanwhile was not seen.
  void set_mode(Mode mode, Context context);
  void ensure_ring(uint32_t capacity);
  // Where the log is now: a cut without its blocks.
  Cut position() noexcept;
  // The state of this instant. Throws std::bad_alloc.
  Cut cut();
  std::shared_ptr<const RingBuffer> ring() const noexcept { return ring_; }
  const LiveTable& live() const noexcept { return *live_; }

 private:
  Cut position_locked() const noexcept;

  const int device_;
  std::atomic<Mode> mode_{Mode::off};
  std::atomic<Context> context_{Context::none};
  SpinLock writer_lock_;  // ring_, live_
  std::shared_ptr<RingBuffer> ring_;
  std::unique_ptr<LiveTable> live_;
  std::atomic<uint64_t> unknown_frees_{0};
  std::atomic<uint64_t> live_dropped_{0};
};

}  // namespace pytracer
