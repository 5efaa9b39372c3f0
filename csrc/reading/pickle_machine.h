// Runs a pickle's opcodes, as far as they make lists, tuples, dicts, numbers and texts.
//
// 1. Nothing of the file is executed: an opcode that imports or calls is a ReadError that names it.
// 2. Whatever is put into a list or tuple goes through Builder::adopt() first, which may make
//    something smaller of it: the machine itself never holds a whole file's dicts.
// 3. Memory is bounded by a multiple of the bytes that were read (80 times, of a file that is made
//    for it): lengths and indices that the file states are not trusted, and nesting and the stack
//    have bounds.
// 4. Protocols 2 to 5. Those before are texts, which no recorder writes.
// 5. One thread. Throws ReadError, with the position in bytes.
#pragma once

#include <string>

#include "byte_reader.h"
#include "strings.h"
#include "value.h"

namespace pytracer::reading {

class Builder {
 public:
  virtual ~Builder() = default;
  virtual Value adopt(Value item) = 0;
};

class PickleMachine {
 public:
  PickleMachine(ByteReader& in, Heap& heap, Strings& strings, Builder& builder)
      : in_(in), heap_(heap), strings_(strings), builder_(builder) {}

  Value run();

 private:
  static constexpr size_t kMostValues = 1 << 24;  // on the stack
  static constexpr size_t kMostMarks = 10'000;
  static constexpr uint64_t kSpareMemos = 1024;  // numbers that a pickler may leave out

  bool step(unsigned char opcode);  // false: STOP
  [[noreturn]] void refuse(unsigned char opcode);

  void push(Value value);
  Value pop();
  Value& top();
  size_t pop_mark();  // where the values above it begin
  void append(Value list, size_t first);
  void set_items(Value dict, size_t first);
  void collect(Shape shape, size_t first);  // the values from `first` on become an object
  Value container(size_t above, Shape shape);
  void text(uint64_t size) { push(Value(Kind::string, strings_.intern(in_.text(size)))); }
  void long_integer(uint64_t size);
  void remember(uint64_t memo);
  void recall(uint64_t memo);

  ByteReader& in_;
  Heap& heap_;
  Strings& strings_;
  Builder& builder_;
  Column<Value> stack_;
  Column<size_t> marks_;
  Column<Value> memo_;
  Column<bool> is_remembered_;  // by memo number
  uint64_t remembered_ = 0;
};

}  // namespace pytracer::reading
