// All texts of a file, each kept once and named by a number; "" is 0.
//
// 1. Texts are UTF-8 as Python's pickle writes it, with lone surrogates; others are a ReadError.
// 2. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "../utf8.h"
#include "column.h"
#include "hash_index.h"

namespace pytracer::reading {

class Strings {
 public:
  Strings() { intern(""); }

  uint32_t intern(std::string_view text) {
    const uint32_t next = static_cast<uint32_t>(begins_.size());
    const uint32_t found = index_.find_or_add(std::hash<std::string_view>()(text), next,
                                              [&](uint32_t each) { return at(each) == text; });
    if (found != next) return found;
    if (!is_utf8(text, Surrogates::allowed)) damaged("a text is not UTF-8");
    begins_.push_back(bytes_.size());
    bytes_.append(text.data(), text.size());
    return next;
  }

  std::string_view at(uint32_t number) const noexcept {
    const uint64_t begin = begins_[number];
    const uint64_t end = number + 1 < begins_.size() ? begins_[number + 1] : bytes_.size();
    return {bytes_.data() + begin, end - begin};
  }
  uint32_t size() const noexcept { return static_cast<uint32_t>(begins_.size()); }

 private:
  Column<uint64_t> begins_;
  Column<char> bytes_;
  HashIndex index_;
};

}  // namespace pytracer::reading
