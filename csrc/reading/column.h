// A growing array of trivially copyable values, which numpy can take over.
//
// 1. Columns grow by realloc(): the kernel moves the pages of a large column without copying, and
//    pages that are not filled yet take no memory.
// 2. memory() is the most that the allocation takes, including malloc()'s own share.
// 3. release() gives the values away; the new owner calls free().
// 4. One thread. Throws std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

namespace pytracer::reading {

template <class T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>, "realloc() moves the values");

 public:
  Column() = default;
  ~Column() { free(); }
  Column(Column&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}

  void push_back(T value) {
    if (size_ == capacity_) reserve(size_ + size_ / 2 + 64);
    data_[size_++] = value;
  }
  void append(const T* values, size_t count) {
    if (count > capacity_ - size_) reserve(size_ + size_ / 2 + count);
    if (count > 0) std::memcpy(static_cast<void*>(data_ + size_), values, count * sizeof(T));
    size_ += count;
  }
  void pop_back() noexcept { --size_; }
  // Leaves new values uninitialised.
  void resize(size_t size) {
    reserve(size);
    size_ = size;
  }
  // Replaces the values by zeroes, which take memory only once they are written to.
  void zeroes(size_t size) {
    void* made = std::calloc(size, sizeof(T));
    if (made == nullptr) throw std::bad_alloc();
    std::free(data_);
    data_ = static_cast<T*>(made);
    size_ = capacity_ = size;
  }
  void reserve(size_t capacity) {
    if (capacity <= capacity_) return;
    if (capacity > PTRDIFF_MAX / sizeof(T)) throw std::bad_alloc();
    void* grown = std::realloc(static_cast<void*>(data_), capacity * sizeof(T));
    if (grown == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(grown);
    capacity_ = capacity;
  }
  void clear() noexcept { size_ = 0; }
  void free() noexcept { std::free(release()); }
  T* release() noexcept {
    size_ = capacity_ = 0;
    return std::exchange(data_, nullptr);
  }

  T& operator[](size_t index) noexcept { return data_[index]; }
  const T& operator[](size_t index) const noexcept { return data_[index]; }
  T& back() noexcept { return data_[size_ - 1]; }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  const T* begin() const noexcept { return data_; }
  const T* end() const noexcept { return data_ + size_; }
  size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  uint64_t memory() const noexcept {
    return capacity_ == 0 ? 0 : capacity_ * sizeof(T) + kMallocBytes;
  }

 private:
  static constexpr uint64_t kMallocBytes = 24;  // malloc() takes 32 bytes at least, with a value

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

template <class... Columns>
uint64_t memory_of(const Columns&... columns) noexcept {
  return (columns.memory() + ...);
}

// Columns of the same length. T::columns_of() ties them together.
template <class T>
struct Table {
  uint64_t memory() const noexcept {
    return std::apply([](const auto&... column) { return memory_of(column...); },
                      T::columns_of(static_cast<const T&>(*this)));
  }
  // Adds a row of zeroes.
  void add_row() {
    std::apply([](auto&... column) { (column.push_back({}), ...); }, T::columns_of(static_cast<T&>(*this)));
  }
};

}  // namespace pytracer::reading
