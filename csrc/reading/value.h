// The values of a pickle, in little memory.
//
// A Value takes 8 bytes: a kind and 60 bits, which are a number or an index into a table.
#pragma once

#include <cstdint>
#include <vector>

#include "column.h"
#include "watch.h"

namespace pytracer::reading {

enum class Kind : uint8_t {
  // Numbers, and what stands for an unknown one.
  none,
  boolean,
  integer,       // the number itself
  wide_integer,  // in the Heap: 61 to 64 bits
  long_integer,  // in the Heap: up to 128 bits
  real,          // in the Heap
  // Others.
  string,        // in the Strings
  object,        // in the Heap: a list, a tuple or a dict
  // Rows of the Tables, to which objects are resolved.
  frame,
  stack,
  pool,
  event,
  block,
  segment,
};

class Value {
 public:
  constexpr Value() = default;
  constexpr Value(Kind kind, uint64_t payload)
      : bits_(static_cast<int64_t>(payload << kKindBits | static_cast<uint64_t>(kind))) {}

  Kind kind() const noexcept { return static_cast<Kind>(bits_ & ((1 << kKindBits) - 1)); }
  bool is(Kind kind) const noexcept { return this->kind() == kind; }
  int64_t number() const noexcept { return bits_ >> kKindBits; }
  uint32_t index() const noexcept { return static_cast<uint32_t>(number()); }
  static constexpr bool fits(int64_t number) noexcept {
    return number >= -(int64_t{1} << 59) && number < int64_t{1} << 59;
  }

 private:
  static constexpr int kKindBits = 4;
  int64_t bits_ = 0;
};
static_assert(sizeof(Value) == 8);

enum class Shape : uint8_t { list, tuple, dict };  // a dict's items: key, value, key, value, ...

// Lists, tuples and dicts, and numbers that are too long for a Value.
//
// 1. A Value refers to an object by index. discard() frees the index for another object, unless
//    share() announced that further Values may refer to it.
// 2. resolve() replaces an object by a row and frees its items. A resolved object cannot change.
// 3. The columns of items are reused.
// 4. One thread.
class Heap {
 public:
  using Items = Column<Value>;

  Value make(Shape shape);
  Shape shape(Value object) const noexcept { return objects_[object.index()].shape; }
  void share(Value object) noexcept { objects_[object.index()].is_shared = true; }
  // Empty for a resolved object.
  const Items& items(Value object) const noexcept {
    return items_[objects_[object.index()].items];
  }
  // Throws ReadError if the object has been resolved.
  void append(Value object, const Value* values, size_t count);

  bool is_resolved(Value object) const noexcept { return objects_[object.index()].is_resolved; }
  Value resolved(Value object) const noexcept { return objects_[object.index()].resolved; }
  Value resolve(Value object, Value to);
  void discard(Value object);

  Value integer(int64_t number);
  Value long_integer(int64_t high, uint64_t low);
  Value real(double number);
  int64_t wide_integer(Value value) const noexcept { return wide_integers_[value.index()]; }
  int64_t high_part(Value long_integer) const noexcept {
    return wide_integers_[long_integer.index()];
  }
  uint64_t low_part(Value long_integer) const noexcept {
    return static_cast<uint64_t>(wide_integers_[long_integer.index() + 1]);
  }
  double real(Value value) const noexcept { return reals_[value.index()]; }

  uint64_t memory() const noexcept {
    return memory_of(objects_, free_objects_, free_items_, wide_integers_, reals_) +
           items_.capacity() * sizeof(Items) + bytes_of_items_;
  }

 private:
  struct Object {
    uint32_t items;  // in items_; 0: none
    Shape shape;
    bool is_shared;
    bool is_resolved;
    Value resolved;
  };
  static_assert(sizeof(Object) == 16);

  static constexpr size_t kKeptBytes = 2048;  // larger columns of items are freed, not reused

  void drop_items(Object& object);

  Column<Object> objects_;
  Column<uint32_t> free_objects_;
  std::vector<Items> items_{1};  // [0] is empty
  uint64_t bytes_of_items_ = 0;
  Column<uint32_t> free_items_;
  Column<int64_t> wide_integers_;
  Column<double> reals_;
};

}  // namespace pytracer::reading
