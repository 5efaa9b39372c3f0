// An allocator event as the ring holds it: 48 bytes; and what tensors were used for.
#pragma once

#include <algorithm>
#include <type_traits>

#include "hooks/hook_abi.h"
#include "support/reserved_array.h"

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

// The names are in snapshot/writer.h, and in pytracer/owners/uses.py.
enum class TensorRole : uint8_t {
  argument,  // of the outermost call of a module
  result,    // of such a call
  gradient,  // that torch.autograd.grad returned
  // Roles that a block keeps until it is freed; then the use is noted, as the free may be much later
  // than the last event that the ring has lost.
  parameter,
  buffer,
  optimizer_state,
};
constexpr uint8_t kTensorRoles = 6;
constexpr bool is_kept(TensorRole role) noexcept { return role >= TensorRole::parameter; }
static_assert(!is_kept(TensorRole{}), "a live block has 0 if it keeps no role");

struct TensorUse {
  uint64_t sequence;  // the number of the first event that came after the use
  uint64_t address : 56;
  uint64_t role : 8;
};
static_assert(sizeof(TensorUse) == 16, "the bound is stated as 16 bytes a use");

// What the program used tensors for. Python code notes a use while the tensor is alive; the reader of a
// snapshot finds the block that had the address then.
//
// 1. note() and copy() run under the device's writer lock, where the number of the next event and
//    the block at the address belong together.
// 2. Bounded: the last kMost uses, 16 bytes each, committed as they fill.
class TensorUses {
 public:
  static constexpr uint32_t kMost = 1u << 15;

  explicit TensorUses(const BoxPart& part) : uses_(kMost, part) {}

  void note(uint64_t sequence, uint64_t address, TensorRole role) noexcept {
    uses_.enter({sequence, address & (~uint64_t{0} >> 8), static_cast<uint8_t>(role)});
  }

  // Copies the uses from number `next` on, at most `most`. Returns how many; `next` moves behind them.
  uint64_t copy(uint64_t& next, uint64_t most, TensorUse* out) const noexcept {
    const uint64_t count = uses_.count();
    next = std::max(next, count - std::min<uint64_t>(count, kMost));
    const uint64_t copied = std::min(count - next, most);
    for (uint64_t i = 0; i < copied; ++i) out[i] = uses_[next++ % kMost];
    return copied;
  }

 private:
  ReservedArray<TensorUse> uses_;
};

}  // namespace pytracer
