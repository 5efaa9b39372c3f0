// All texts of a file, each kept once and named by a number; "" has the number 0.
//
// 1. A text is UTF-8 and may have lone surrogates, as Python's pickle writes them. Any other text is
//    a ReadError.
// 2. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "column.h"
#include "hash_index.h"
#include "support/utf8.h"

namespace pytracer::reading {

class Strings {
 public:
  explicit Strings(Watch& watch) : index_(watch) { intern(""); }

  uint32_t intern(std::string_view text) {
    return index_.intern(
        std::hash<std::string_view>()(text), begins_.size(),
        [&](uint32_t number) { return at(number) == text; },
        [&] {
          if (!is_utf8(text, Surrogates::allowed)) damaged("a text is not UTF-8");
          begins_.push_back(bytes_.size());
          bytes_.append(text.data(), text.size());
        });
  }

  std::string_view at(uint32_t number) const noexcept {
    const uint64_t begin = begins_[number];
    const uint64_t end = number + 1 < begins_.size() ? begins_[number + 1] : bytes_.size();
    return {bytes_.data() + begin, end - begin};
  }
  uint32_t size() const noexcept { return static_cast<uint32_t>(begins_.size()); }
  uint64_t memory() const noexcept { return memory_of(begins_, bytes_, index_); }

 private:
  Column<uint64_t> begins_;
  Column<char> bytes_;
  HashIndex index_;
};

}  // namespace pytracer::reading
