// The hash of all tables: of one word, or of two.
#pragma once

#include <cstdint>

namespace pytracer {

// The low bits of the result depend on all bits.
inline uint64_t mix(uint64_t a, uint64_t b = 0) noexcept {
  const uint64_t mixed = (a ^ b * 0xd6e8feb86659fd93ull) * 0x9e3779b97f4a7c15ull;
  return mixed ^ (mixed >> 32);
}

}  // namespace pytracer
