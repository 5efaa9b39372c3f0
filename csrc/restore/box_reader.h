// Reads the arrays of a box (support/box.h), which another process may be writing, or has left.
//
// A box is untrusted: whatever it says, reading stays within the file and the bounds below. So memory is
// bounded by what the file takes on its disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "support/box.h"

namespace pytracer {

class BoxReader {
 public:
  // Throws Error: the file is no box of this version, or its tables are far larger than it; IoError.
  explicit BoxReader(int file);

  struct Array {
    BoxKind kind;
    int device;
    uint16_t array;
    uint32_t number, item_bytes;
    uint64_t offset, backed, count, first, serial, entry /* its offset */;
    uint64_t capacity() const noexcept { return item_bytes != 0 ? backed / item_bytes : 0; }
  };
  const std::vector<Array>& arrays() const noexcept { return arrays_; }
  // Of this kind, the one that was made last; null: there is none.
  const Array* newest(BoxKind kind, int device = 0, uint32_t number = 0, uint16_t array = 0) const;
  uint64_t count_now(const Array& array) const;  // of a process that goes on
  bool is_cut() const noexcept { return is_cut_; }

  // Some of an array's items. Those that the file does not have are left out, and so are all of an array whose
  // items have another size. Throws IoError, std::bad_alloc.
  template <class T>
  std::vector<T> items(const Array* array, uint64_t begin, uint64_t end) const {
    if (array == nullptr || array->item_bytes != sizeof(T)) return {};
    end = std::min(end, array->capacity());
    if (begin >= end) return {};
    std::vector<T> all(end - begin);
    all.resize(read(array->offset + begin * sizeof(T), all.data(), all.size() * sizeof(T)) / sizeof(T));
    return all;
  }
  // Of an array of which the last `most` are kept: those, oldest first.
  template <class T>
  std::vector<T> last(const Array* array, uint64_t most) const {
    if (array == nullptr) return {};
    std::vector<T> all = items<T>(array, 0, std::min(array->count, most));
    if (array->count > most && all.size() == most) {
      std::rotate(all.begin(), all.begin() + static_cast<ptrdiff_t>(array->count % most), all.end());
    }
    return all;
  }
  // Of a table of names: the names from number 1 on.
  std::vector<std::string> names(BoxKind kind, int device = 0, uint32_t number = 0) const;

 private:
  size_t read(uint64_t offset, void* to, size_t size) const;  // returns how many bytes there were

  static constexpr uint64_t kMaxArrayBytes = uint64_t{1} << 32;
  // A copy may have holes where a table was not written, or be compressed by its file system.
  static constexpr uint64_t kSpare = 16 << 20, kMostGrowth = 4;
  const int file_;
  bool is_cut_ = false;
  std::vector<Array> arrays_;
};

}  // namespace pytracer
