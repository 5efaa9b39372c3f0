// Runs those opcodes of a pickle that make lists, tuples, dicts, numbers and texts.
//
// 1. Nothing of the file is executed: an opcode that imports or calls is a ReadError that names it.
// 2. Each item of a list or tuple passes through RowBuilder::adopt(), which may replace it by a smaller
//    value, so that the dicts of a file are never all in memory.
// 3. Memory grows with the bytes that were read: lengths and indices that the file states are not
//    trusted, and nesting and the stack have bounds. The Watch checks signals and all memory every
//    1,024 opcodes or adopted items.
// 4. Protocols 2 to 5. Earlier protocols are text, which no recorder writes.
// 5. One thread. Throws ReadError, with the position in bytes.
#pragma once

#include "row_builder.h"

namespace pytracer::reading {

class PickleMachine {
 public:
  PickleMachine(ByteReader& in, Tables& tables, RowBuilder& builder, Watch& watch)
      : in_(in), heap_(tables.heap), strings_(tables.strings), builder_(builder), watch_(watch) {}

  Value run();

 private:
  static constexpr size_t kMostValues = 1 << 24;  // on the stack
  static constexpr size_t kMostMarks = 10'000;
  static constexpr uint64_t kSpareMemos = 1024;  // memo numbers that a pickler may skip
  static constexpr uint64_t kMostText = 1 << 24;  // bytes

  bool step(unsigned char opcode);  // false: STOP
  [[noreturn]] void refuse(unsigned char opcode);

  void tick() {
    if (++ticks_ % Watch::kInterval == 0) check();
  }
  void check();

  void push(Value value);
  Value pop();
  Value& top();
  size_t pop_mark();  // the index of the first value above the mark
  void move(size_t first, Value to);        // the values from `first` on, to an object
  void collect(Shape shape, size_t first);  // the same, to a new object
  void extend(Shape shape, size_t first);   // the same, to the list or dict below them
  void text(uint64_t size);
  void long_integer(uint64_t size);
  void remember(uint64_t memo);
  void recall(uint64_t memo);

  ByteReader& in_;
  Heap& heap_;
  Strings& strings_;
  RowBuilder& builder_;
  Watch& watch_;
  uint64_t ticks_ = 0;
  Column<Value> stack_;
  Column<size_t> marks_;
  Column<Value> memo_;
  Column<bool> is_remembered_;  // by memo number
  uint64_t remembered_ = 0;
};

}  // namespace pytracer::reading
