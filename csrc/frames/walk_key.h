// The key of a walk, by which the recorder finds the walk's stack without a lock.
//
// A key depends on the innermost frames of a walk, on whether frames are missing, and on a seed.
// Equal walks have equal keys. Different walks have equal keys by chance only, with a probability
// around 2^-75 in a table of a million stacks.
#pragma once

#include <cstdint>
#include <type_traits>

namespace pytracer {

struct WalkKey {
  uint64_t a;
  uint64_t b;
};

// Two polynomials over a run of frames, outermost frame first. The share of the outermost frames
// can be subtracted from a polynomial, so a key needs no second pass over the innermost frames.
// Trivially default constructible: a thread's memo has a thousand of them, and its pages must stay
// untouched until a walk needs them.
struct WalkHash {
  uint64_t a;
  uint64_t b;

  // The hash of these frames and of the frame that they call.
  WalkHash extended(const void* code, uint64_t instruction) const noexcept {
    const uint64_t code_bits = reinterpret_cast<uint64_t>(code);
    return {a * kBaseA + scattered(instruction ^ (code_bits << 21)),
            b * kBaseB + scattered(code_bits ^ (instruction << 29))};
  }

  // The bases to the power of `exponent`.
  static WalkHash power(uint32_t exponent) noexcept {
    WalkHash result{1, 1};
    for (uint32_t i = 0; i < exponent; ++i) result = {result.a * kBaseA, result.b * kBaseB};
    return result;
  }

  // The hash of the innermost n frames; `outer` is the hash of the others, `power` is power(n).
  WalkHash without(const WalkHash& outer, const WalkHash& power) const noexcept {
    return {a - outer.a * power.a, b - outer.b * power.b};
  }

  WalkKey key(uint64_t seed, bool is_truncated) const noexcept {
    const uint64_t salt = (seed << 1) | is_truncated;
    return {a ^ scattered(salt), b + salt};
  }

 private:
  // Odd, and 5 modulo 8: powers of such numbers repeat as late as possible.
  static constexpr uint64_t kBaseA = 0x9e3779b97f4a7c15ull, kBaseB = 0xc2b2ae3d27d4eb4dull;

  // A bijection in which low bits of the result depend on high bits of the value too.
  static uint64_t scattered(uint64_t value) noexcept {
    value *= 0xd6e8feb86659fd93ull;
    return value ^ (value >> 32);
  }
};
static_assert(std::is_trivially_default_constructible_v<WalkHash>);

}  // namespace pytracer
