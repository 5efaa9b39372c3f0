// What the program used tensors for. Python code notes a use while the tensor is alive; the reader of a
// snapshot finds the block that had the address then.
//
// 1. note() and copy() run under the device's writer lock, where the number of the next event and
//    the block at the address belong together.
// 2. Bounded: the last kMost uses, 16 bytes each, committed as they fill.
#pragma once

#include <algorithm>
#include <cstdint>

#include "support/reserved_array.h"

namespace pytracer {

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
