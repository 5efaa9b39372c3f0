// An allocator event as the ring holds it: 48 bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "hooks/hook_abi.h"

namespace pytracer {

struct Event {
  uint64_t address;  // of the block or segment; for oom: the free bytes of the device
  uint64_t packed_size;  // size() and birth()
  uint64_t stream;
  int64_t ticks;         // clock.h; never 0 once recorded
  uint32_t stack;        // StackTable id of the calling thread's Python stack; 0: none
  uint32_t alloc_stack;  // for frees: the stack of the freed allocation; 0: unknown
  uint16_t phase;
  uint16_t pool;      // memory pool, interned; 0: the default one
  uint16_t metadata;  // compile context and user metadata, interned; 0: none
  uint8_t action;     // enum pytracer_action, or kFreeAtOnce
  int8_t device;      // PYTRACER_CPU_DEVICE, PYTRACER_HOST_DEVICE or the accelerator's index

  // For frees: the last 16 bits of LiveTable's epoch of the allocation; 0: unknown. They are the upper 16
  // bits of packed_size, which no block's size needs, unlike that of a request that failed.
  uint16_t birth() const noexcept;
  uint64_t size() const noexcept;  // bytes
  static constexpr unsigned kBirthShift = 48;
};

// The action of an event that stands for two: a PYTRACER_FREE_REQUESTED and, next, a
// PYTRACER_FREE_COMPLETED of the same block, with the same stack, phase and labels.
constexpr uint8_t kFreeAtOnce = PYTRACER_ACTION_COUNT;

inline bool is_free(const Event& event) noexcept {
  return event.action == PYTRACER_FREE_REQUESTED || event.action == PYTRACER_FREE_COMPLETED ||
         event.action == kFreeAtOnce;
}

inline uint16_t Event::birth() const noexcept {
  return is_free(*this) ? static_cast<uint16_t>(packed_size >> kBirthShift) : uint16_t{0};
}

inline uint64_t Event::size() const noexcept {
  return is_free(*this) ? packed_size & ((uint64_t{1} << kBirthShift) - 1) : packed_size;
}

static_assert(sizeof(Event) == 48, "the ring's bound is stated as 48 bytes an entry");
static_assert(std::is_trivially_copyable_v<Event>);

// Which Python stacks are kept, as in torch.cuda.memory._record_memory_history(context=...).
enum class Context : uint8_t {
  none = 0,   // no stacks
  state = 1,  // live blocks have the stack of their allocation, events have none
  alloc = 2,  // every event has the stack of the allocation it belongs to
  all = 3,    // every event has the stack of the thread that caused it
};

}  // namespace pytracer
