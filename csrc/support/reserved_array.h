// An array at a fixed address that takes memory only where it was touched.
//
// 1. The address range is reserved once and never moves: references and lock-free readers stay
//    valid for the array's lifetime.
// 2. Pages are committed, zero-filled, at the first touch. Of an array in a box, back() comes first.
// 3. A forked child sees zeroes (where the kernel can do that), so fork copies nothing.
// 4. Only the constructors and back() take address space. Nothing else allocates or throws.
// 5. count() is its user's. It lies outside of the box, whose reader finds a copy: so what a writer relies on
//    is there in a child, and after the file was truncated.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "support/box.h"
#include "support/error.h"

namespace pytracer {

template <class T>
class ReservedArray {
  static_assert(std::is_trivially_destructible_v<T>, "pages are dropped, not destroyed");

 public:
  // In a box, if there is one and it has room. Throws Error if there is not enough address space.
  explicit ReservedArray(size_t capacity, const BoxPart& part = {}) : bytes_(std::max<size_t>(capacity, 1) * sizeof(T)) {
    if (part.box) place_ = part.box->take(part, bytes_, sizeof(T));
    if (place_.memory != nullptr) {
      box_ = part.box;
      copy_ = &place_.entry->count;
      data_ = reinterpret_cast<T*>(place_.memory);
      return;
    }
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw Error("cannot reserve " + std::to_string(bytes_) + " bytes of address space: " +
                  std::strerror(errno));
    }
    // Both may be refused: then memory is committed in larger pieces, and a fork copies the pages.
    madvise(memory, bytes_, MADV_NOHUGEPAGE);
    madvise(memory, bytes_, MADV_WIPEONFORK);
    data_ = static_cast<T*>(memory);
    backed_ = bytes_;
  }
  ~ReservedArray() {
    if (box_) {
      box_->give_back(place_);
    } else {
      munmap(static_cast<void*>(data_), bytes_);
    }
  }
  ReservedArray(ReservedArray&&) = delete;

  T& operator[](size_t index) noexcept { return data_[index]; }
  const T& operator[](size_t index) const noexcept { return data_[index]; }
  size_t capacity() const noexcept { return bytes_ / sizeof(T); }

  uint64_t count(std::memory_order order = std::memory_order_relaxed) const noexcept {
    return count_.load(order);
  }
  void set_count(uint64_t count) noexcept {
    count_.store(count, std::memory_order_release);
    copy_->store(count, std::memory_order_release);
  }
  BoxEntry* entry() noexcept { return place_.entry; }  // null: in no box

  // Makes the first elements usable, which may be some more. Returns how many are: fewer than wanted only if
  // there is no address space. One thread at a time.
  size_t back(size_t wanted) noexcept {
    if (box_ && wanted * sizeof(T) > backed_ && wanted <= capacity()) {
      backed_ = box_->back(place_, wanted * sizeof(T));
    }
    return std::min(backed_ / sizeof(T), capacity());
  }

  // Enters an element as number count() of all that were ever entered; the last capacity() are kept, each in
  // the place of its number modulo capacity(). One thread at a time.
  void enter(const T& element) noexcept {
    const uint64_t number = count(), place = number % capacity();
    if (back(std::min<uint64_t>(number + 1, capacity())) <= place) return;
    data_[place] = element;
    set_count(number + 1);
  }

  // Sets all elements to zero. In a fork handler too. Not in a box.
  void clear() noexcept {
    if (madvise(static_cast<void*>(data_), bytes_, MADV_DONTNEED) != 0) {
      std::memset(static_cast<void*>(data_), 0, bytes_);
    }
  }

 private:
  size_t bytes_;
  T* data_ = nullptr;
  size_t backed_ = 0;  // bytes
  std::shared_ptr<Box> box_;
  Box::Place place_;
  std::atomic<uint64_t> count_{0}, no_copy_{0};
  std::atomic<uint64_t>* copy_ = &no_copy_;  // in the box; without one, nobody reads it
};

}  // namespace pytracer
