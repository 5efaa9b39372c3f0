// What a pickle is made of, as small as it goes.
//
// A Value is 8 bytes: a kind and 60 bits, which are a number, or an index in one of the tables.
#pragma once

#include <cstdint>
#include <vector>

#include "column.h"
#include "read_error.h"

namespace pytracer::reading {

enum class Kind : uint8_t {
  none,
  boolean,
  integer,       // itself
  wide_integer,  // Heap: of 60 to 64 bits
  long_integer,  // Heap: of up to 128
  real,          // Heap
  string,        // Strings
  object,        // Heap: a list, a tuple or a dict
  // What objects are resolved to once it is clear what they are; Tables has them.
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
// 1. An object is named by its index. discard() gives the index away again, unless something may
//    still name the object: share() says so.
// 2. resolve() says what the object stands for and lets go of its items; it cannot be changed then.
// 3. Items are kept in vectors that are used again and again.
// 4. One thread.
class Heap {
 public:
  Value make(Shape shape);
  Shape shape(Value object) const noexcept { return objects_[object.index()].shape; }
  void share(Value object) noexcept { objects_[object.index()].is_shared = true; }
  // Empty for a resolved one.
  const std::vector<Value>& items(Value object) const noexcept {
    return items_[objects_[object.index()].items];
  }
  // To add some. Throws ReadError if it has been resolved.
  std::vector<Value>& grow(Value object);

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


 private:
  struct Object {
    uint32_t items;  // in items_; 0: none
    Shape shape;
    bool is_shared;
    bool is_resolved;
    Value resolved;
  };
  static_assert(sizeof(Object) == 16);

  static constexpr size_t kKeptItems = 256;  // larger vectors are given back

  void drop_items(Object& object);

  Column<Object> objects_;
  Column<uint32_t> free_objects_;
  std::vector<std::vector<Value>> items_{1};  // [0] is empty
  std::vector<uint32_t> free_items_;
  Column<int64_t> wide_integers_;
  Column<double> reals_;
};

}  // namespace pytracer::reading
