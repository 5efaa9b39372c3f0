// Turns the dicts of a snapshot into rows of the Tables while the pickle is read.
//
// 1. A dict that is put into a list is examined: an event, a frame, a block or a segment becomes a
//    row of its table, recognised by its keys alone. Every other value stays as it is.
// 2. Missing keys leave the row's defaults. Unknown keys are noted in Tables::unknown_keys.
// 3. A file whose rows are in several lists, or in another order than in its lists, is a ReadError.
// 4. Loops over the many rows that a file may have ask the Watch.
// 5. One thread.
#pragma once

#include "tables.h"

namespace pytracer::reading {

// The numbers that a key can mean, and the one that stands for all others.
struct Meant {
  int64_t least, most, unknown;
};
constexpr Meant kCount{0, INT64_MAX, 0};
constexpr Meant kBytes{0, (int64_t{1} << 62) - 1, 0};  // no sum of two is beyond 64 bits
constexpr Meant kRequestedBytes{kBytes.least, kBytes.most, -1};
constexpr Meant kLineNumber{0, INT32_MAX, 0};
constexpr Meant kTime{0, INT64_MAX, kNoTime};
constexpr Meant kAny{INT64_MIN, INT64_MAX, 0};  // addresses, streams and pools: any 64 bits
constexpr Meant kBlockAddress{kAny.least, kAny.most, -1};

// Turns the values of a dict's keys into what a row holds: numbers, texts, stacks, pools, actions.
//
// 1. None counts as a missing key: 0, "", the empty stack, the default pool. So does a number that
//    its key cannot mean: recorders write -1 as 2^64 - 1, and Python's integers have no bound.
// 2. A value of another type than expected is a ReadError; `what` names it in the message.
// 3. A list of frames or a pair of numbers that was turned into a row gives up its items.
// 4. One thread.
class RowValues {
 public:
  RowValues(Tables& tables, Watch& watch) : tables_(tables), watch_(watch) {}

  int64_t integer(Value value, const char* what, const Meant& meant) const;
  uint32_t text(Value value, const char* what) const;
  uint32_t stack(Value list);
  // A list of texts as Python's traceback module formats frames, outermost first.
  uint32_t forward_stack(Value list);
  uint32_t pool(Value pair);
  uint8_t action(Value value);
  // kNoState for anything that is no state.
  uint8_t block_state(Value value) const noexcept;
  bool is_list(Value value) const noexcept {
    return value.is(Kind::object) && tables_.heap.shape(value) == Shape::list;
  }
  // A list of rows, which must be adjacent in their table, as a pickler writes them.
  RowRange rows(Value list, Kind kind, const char* what) const;

 private:
  template <class Intern>
  uint32_t row(Value object, Kind kind, const char* what, Intern intern);
  Value frame_of(uint32_t text);

  Tables& tables_;
  Watch& watch_;
  Column<Value> frame_of_text_;  // by text; none: not parsed yet
};

constexpr int64_t kMostDevices = 256;  // torch counts devices in 8 bits
constexpr Meant kDeviceIndex{-1, kMostDevices - 1, -1};
constexpr const char* kTooManyDevices = "more devices than there can be";

class RowBuilder {
 public:
  RowBuilder(Tables& tables, Watch& watch);

  Value adopt(Value item);
  uint64_t memory() const noexcept { return tables_.memory(); }  // without the Heap and Strings

  // The blocks that are in a segment: the first rows of their table.
  uint64_t claimed_blocks() const noexcept { return claimed_blocks_; }
  // Notes a key that the reader does not know, for a kind of dict.
  void note_unknown(std::string_view row, Value key);

 private:
  enum class Row : uint8_t { none, event, frame, block, segment };
  using Items = Heap::Items;
  using Backward = StackRows::Backward;

  Row row_kind(const Items& items) const noexcept;
  Value event(const Items& items);
  Value frame(const Items& items);
  Value block(const Items& items);
  Value segment(const Items& items);
  // What an event's key "allocation" says. The event is the last row.
  void allocation(Value dict);
  // What a key says of an autograd node; other keys are unknown in this kind of row.
  void read_backward(std::string_view row, Value key, Value value, Backward& backward);
  uint32_t with_backward(uint32_t stack, Backward backward);
  void read_history(Value list, int64_t& requested, uint32_t& stack);

  Tables& tables_;
  Watch& watch_;
  RowValues values_;
  uint64_t claimed_blocks_ = 0;
};

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
Value read_pickle(ByteReader& in, Tables& tables, RowBuilder& builder, Watch& watch);

}  // namespace pytracer::reading
