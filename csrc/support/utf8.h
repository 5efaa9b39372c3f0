// Checks and repairs UTF-8: a pickle with a text that is not UTF-8 cannot be read at all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace pytracer {

enum class Surrogates { refused, allowed };  // lone ones, as Python's pickle writes them

// Accepts what Python's decoder accepts: no overlong forms, nothing beyond U+10FFFF.
inline bool is_utf8(std::string_view text, Surrogates surrogates = Surrogates::refused) noexcept {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
    };
    const unsigned first = byte(i);
    const size_t size = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (size == 0 || first > 0xf4) return false;
    for (size_t k = 1; k < size; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    const unsigned second = byte(i + 1);
    if ((first == 0xe0 && second < 0xa0) ||
        (first == 0xed && second > 0x9f && surrogates == Surrogates::refused) ||
        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) {
      return false;
    }
    i += size;
  }
  return true;
}

// Returns the text; if it is not UTF-8 (C++ may have made it), with ? for all that is not ASCII.
inline std::string to_utf8(std::string_view text, Surrogates surrogates = Surrogates::refused) {
  std::string result(text);
  if (!is_utf8(text, surrogates)) {
    std::replace_if(result.begin(), result.end(),
                    [](char c) { return static_cast<signed char>(c) < 0; }, '?');
  }
  return result;
}

}  // namespace pytracer
