// Turns the values of a dict's keys into what a row holds: numbers, texts, stacks, pools, actions.
//
// 1. None counts as a missing key: 0, "", the empty stack, the default pool. So does a number that
//    its key cannot mean: recorders write -1 as 2^64 - 1, and Python's integers have no bound.
// 2. A value of another type than expected is a ReadError; `what` names it in the message.
// 3. A list of frames or a pair of numbers that was turned into a row gives up its items.
// 4. One thread.
#pragma once

#include "tables.h"
#include "watch.h"

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
  bool is_list(Value value) const noexcept;
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

}  // namespace pytracer::reading
