// The part of DeviceLog that every event passes, inlined into Recorder::record(). All actions share one
// copy, and rare work is in functions marked cold: torch and the interpreter need most of the
// processor's instruction cache, so code that spans more of it costs more than the instructions saved.
#pragma once

#include <algorithm>

#include "record/clock.h"
#include "record/device_log.h"

namespace pytracer {

__attribute__((always_inline)) inline void DeviceLog::record(const pytracer_event& given,
                                                             uint8_t action, uint32_t stack,
                                                             uint16_t phase) noexcept {
  writer_lock_.lock();
  write(given, action, stack, phase);
  writer_lock_.unlock();
}

__attribute__((always_inline)) inline void DeviceLog::write(const pytracer_event& given,
                                                            uint8_t action, uint32_t stack,
                                                            uint16_t phase) noexcept {
  // set_mode() takes the lock too, so the mode holds until this event is written.
  if (mode_.load(std::memory_order_relaxed) != Mode::on) {
    return write_without_ring(given, action, stack, phase);
  }
  if (requested_.ticks != 0) {
    // Size, stream and pool are the block's, so they are those of the request.
    if (action == PYTRACER_FREE_COMPLETED && requested_.address == given.address &&
        requested_.stack == stack && requested_.phase == phase &&
        requested_.metadata == metadata_of(given)) {
      return write_requested(kFreeAtOnce);
    }
    write_requested_alone();
  }
  if (action == PYTRACER_FREE_REQUESTED) {
    requested_ = event(given, action, given.size, stack, 0, phase);
    return;
  }
  const Known known = update_tables(given, action, stack, phase);
  if (known.is_recorded) {
    ring_->append(event(given, action, known.packed_size, stack, known.alloc_stack, phase));
  }
}

__attribute__((always_inline)) inline void DeviceLog::write_requested(uint8_t action) noexcept {
  LiveTable& blocks = tables_->blocks;
  const bool completes = action == kFreeAtOnce;
  used_ = true;
  const LiveBlock* const block =
      completes ? blocks.take(requested_.address) : blocks.find(requested_.address);
  if (block != nullptr) {
    requested_.alloc_stack = block->stack;
    requested_.packed_size = with_birth(requested_.packed_size, *block);
    if (block->role != 0) note_role(*block);
  } else if (completes) {
    increment(unknown_frees_);
  }
  requested_.action = action;
  ring_->append(requested_);
  requested_.ticks = 0;
}

__attribute__((always_inline)) inline Event DeviceLog::event(const pytracer_event& given,
                                                             uint8_t action, uint64_t packed_size,
                                                             uint32_t stack, uint32_t alloc_stack,
                                                             uint16_t phase) noexcept {
  return {given.address, packed_size, given.stream, ticks_of(given), stack, alloc_stack, phase,
          names_->intern_pool(given.pool_high, given.pool_low), metadata_of(given), action,
          static_cast<int8_t>(given.device)};
}

inline int64_t DeviceLog::ticks_of(const pytracer_event& given) noexcept {
  if (given.ticks > oom_ticks_) return given.ticks;  // the allocator has read its clock
  if (__builtin_expect(given.ticks != 0, 0)) return oom_ticks_;
  // A processor may execute the reading of its clock before it has the lock.
  return last_ticks_ = std::max(now_ticks(), last_ticks_);
}

__attribute__((always_inline)) inline DeviceLog::Known DeviceLog::update_tables(
    const pytracer_event& given, uint8_t action, uint32_t stack, uint16_t phase) noexcept {
  LiveTable& blocks = tables_->blocks;
  used_ = true;
  Known known{given.size, 0, true};
  switch (action) {
    case PYTRACER_ALLOC: {
      LiveTable::Inserted inserted = blocks.insert(given.address, given.size, stack);
      if (inserted.block != nullptr) {
        record_missed_free(given, phase, *inserted.block);
        inserted = blocks.insert(given.address, given.size, stack);
      }
      if (!inserted.done) {
        increment(live_dropped_);
        known.is_recorded = !is_cpu();  // an event without its block would contradict the state
      }
      break;
    }
    case PYTRACER_FREE_REQUESTED:  // in Mode::state: the block lives on
      break;
    case PYTRACER_FREE_COMPLETED:
      if (const LiveBlock* block = blocks.take(given.address)) {
        known.alloc_stack = block->stack;
        known.packed_size = with_birth(given.size != 0 ? given.size : block->size, *block);
        if (block->role != 0) note_role(*block);
      } else {
        increment(unknown_frees_);
        known.is_recorded = !is_cpu() || given.size != 0;  // without a size the event is useless
      }
      break;
    default:
      known.alloc_stack = update_segments(given, stack);
  }
  return known;
}

}  // namespace pytracer
