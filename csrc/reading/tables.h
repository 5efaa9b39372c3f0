// The tables of a snapshot, filled while its pickle is read.
//
// 1. A dict that is put into a list is looked at: an event, a frame, a block or a segment becomes a
//    row of its table, by its keys alone; the rest stays as it is.
// 2. Lists of frames become stacks, and pairs of numbers pools, when a row refers to them. What is
//    equal is kept once.
// 3. Keys that are missing leave the row's default; keys that nothing is known of are named in
//    unknown_keys. None is as a missing key; another value of a wrong type is a ReadError.
// 4. Rows stand in their tables in the file's order; a file that has them in several lists, or in
//    another order than its lists, is a ReadError.
// 5. One thread.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "actions.h"
#include "pickle_machine.h"

namespace pytracer::reading {

constexpr int64_t kNoTime = -1;

struct EventColumns {
  Column<uint8_t> action;
  Column<int64_t> address, size, stream, time;
  Column<uint32_t> stack, pool, compile_context, user_metadata;
};

struct BlockColumns {
  Column<int64_t> segment, address, size, requested;  // address -1: the file does not tell
  Column<uint8_t> state;  // enum BlockState
  Column<uint32_t> stack;
};
enum BlockState : uint8_t { kInactive, kPendingFree, kAllocated, kNoState };

struct SegmentColumns {
  Column<int64_t> device, address, size, stream, first_block;
  Column<uint32_t> kind, pool, stack;
  Column<bool> is_expandable;
};

// Row i begins where row i - 1 ends.
struct StackColumns {
  Column<int64_t> ends;
  Column<uint32_t> frame;
};

struct FrameColumns {
  Column<uint32_t> filename, name;
  Column<int64_t> line;
};

struct Range {
  uint64_t begin, end;
};

class Tables final : public Builder {
 public:
  Tables();

  Value adopt(Value item) override;
  // The pickle's outermost value: what it tells beside its rows, checked for being a snapshot.
  void finish(Value root);

  Heap heap;
  Strings strings;
  EventColumns events;
  BlockColumns blocks;
  SegmentColumns segments;
  StackColumns stacks;
  FrameColumns frames;
  Column<int64_t> pools;  // pairs
  std::vector<std::string> actions;
  std::set<std::string> unknown_keys;

  // Since finish().
  std::vector<Range> traces;    // rows of events, by device
  Range device_segments{0, 0};  // rows of segments: the others are of host memory
  Range device_blocks{0, 0};    // their blocks
  Value allocator_settings, external_annotations, about;

 private:
  enum class Row : uint8_t { other, event, frame, block, segment };

  Row row_of(const std::vector<Value>& items) const noexcept;
  Value event(const std::vector<Value>& items);
  Value frame(const std::vector<Value>& items);
  Value block(const std::vector<Value>& items);
  Value segment(const std::vector<Value>& items);
  void unknown(std::string_view row, Value key);

  int64_t integer(Value value, const char* what) const;
  uint32_t text(Value value, const char* what) const;
  uint32_t stack(Value value);
  uint32_t pool(Value value);
  uint8_t action(Value value);
  uint8_t state_of(Value value) const noexcept;
  void history(Value value, int64_t& requested, uint32_t& stack);
  Range rows(Value list, Kind kind, const char* what) const;
  bool is_list(Value value) const noexcept;
  [[noreturn]] static void wrong(const char* what);

  static constexpr uint8_t kNoAction = UINT8_MAX;

  HashIndex frame_index_, stack_index_, pool_index_;
  uint64_t claimed_blocks_ = 0;  // those that are in a segment: the first ones
  std::vector<uint8_t> action_of_string_;  // by string; 255: not known yet
};

}  // namespace pytracer::reading
