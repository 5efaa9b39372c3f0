// An array at a fixed address that takes memory only where it was touched.
//
// 1. The address range is reserved once and never moves: references and lock-free readers stay
//    valid for the array's lifetime.
// 2. Pages are committed, zero-filled, at the first touch.
// 3. A forked child sees zeroes (where the kernel can do that), so fork copies nothing.
// 4. Only the constructors take address space. Nothing else allocates or throws.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include "support/error.h"

namespace pytracer {

template <class T>
class ReservedArray {
  static_assert(std::is_trivially_destructible_v<T>, "pages are dropped, not destroyed");

 public:
  // Throws Error if there is not enough address space.
  explicit ReservedArray(size_t capacity) : ReservedArray(capacity, std::nothrow) {
    if (!has_memory()) {
      throw Error("cannot reserve " + std::to_string(bytes_) + " bytes of address space: " +
                  std::strerror(errno));
    }
  }
  // For hooks: without enough address space, the array has no memory and must not be used.
  ReservedArray(size_t capacity, const std::nothrow_t&) noexcept
      : bytes_((capacity > 0 ? capacity : 1) * sizeof(T)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;
    // Both may be refused: then memory is committed in larger pieces, and a fork copies the pages.
    madvise(memory, bytes_, MADV_NOHUGEPAGE);
    madvise(memory, bytes_, MADV_WIPEONFORK);
    data_ = static_cast<T*>(memory);
  }
  ~ReservedArray() {
    if (data_ != nullptr) munmap(static_cast<void*>(data_), bytes_);
  }
  ReservedArray(const ReservedArray&) = delete;
  ReservedArray& operator=(const ReservedArray&) = delete;

  T& operator[](size_t index) noexcept { return data_[index]; }
  const T& operator[](size_t index) const noexcept { return data_[index]; }
  size_t capacity() const noexcept { return bytes_ / sizeof(T); }
  bool has_memory() const noexcept { return data_ != nullptr; }

  // Sets all elements to zero. In a fork handler too.
  void clear() noexcept {
    if (madvise(static_cast<void*>(data_), bytes_, MADV_DONTNEED) != 0) {
      std::memset(static_cast<void*>(data_), 0, bytes_);
    }
  }

 private:
  size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace pytracer
