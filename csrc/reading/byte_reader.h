// Reads a file's bytes, a megabyte at a time, and counts them.
//
// 1. A length that the file states never decides how much memory is allocated: text() grows as its
//    bytes arrive.
// 2. A file that ends too early is a ReadError.
// 3. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "watch.h"

namespace pytracer::reading {

// Reads up to `size` bytes and returns how many; 0: the end.
using ByteSource = std::function<size_t(char* buffer, size_t size)>;

class ByteReader {
 public:
  explicit ByteReader(ByteSource source) : source_(std::move(source)), buffer_(new char[kBufferSize]) {}

  uint64_t position() const noexcept { return passed_ + used_; }
  bool at_end() { return used_ == filled_ && !fill(); }

  template <class Integer>
  Integer little_endian() {
    char bytes[sizeof(Integer)];
    if (filled_ - used_ >= sizeof(Integer)) {
      std::memcpy(bytes, &buffer_[used_], sizeof(Integer));
      used_ += sizeof(Integer);
    } else {
      for (char& byte : bytes) byte = next();
    }
    Integer value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }

  uint64_t memory() const noexcept { return kBufferSize + long_text_.capacity(); }

  // Valid until the next call.
  std::string_view text(uint64_t size) {
    if (filled_ - used_ >= size) {
      const std::string_view found(&buffer_[used_], size);
      used_ += size;
      return found;
    }
    long_text_.clear();
    while (size > 0) {
      if (at_end()) throw ReadError(ReadError::Kind::truncated, "the file ends");
      const size_t part = std::min<uint64_t>(size, filled_ - used_);
      long_text_.append(&buffer_[used_], part);
      used_ += part;
      size -= part;
    }
    return long_text_;
  }

  // Reads to the end of the line and returns at most `most` bytes of it.
  std::string line(size_t most) {
    std::string text;
    for (char byte = next(); byte != '\n'; byte = next()) {
      if (text.size() < most) text += byte;
    }
    return text;
  }

 private:
  static constexpr size_t kBufferSize = 1 << 20;
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

  char next() {
    if (at_end()) throw ReadError(ReadError::Kind::truncated, "the file ends");
    return buffer_[used_++];
  }
  bool fill() {
    passed_ += used_;
    used_ = 0;
    filled_ = source_(buffer_.get(), kBufferSize);
    return filled_ > 0;
  }

  const ByteSource source_;
  std::unique_ptr<char[]> buffer_;
  size_t used_ = 0;
  size_t filled_ = 0;
  uint64_t passed_ = 0;
  std::string long_text_;
};

}  // namespace pytracer::reading
