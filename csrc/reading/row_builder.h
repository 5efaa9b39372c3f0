// Turns the dicts of a snapshot into rows of the Tables while the pickle is read.
//
// 1. A dict that is put into a list is examined: an event, a frame, a block or a segment becomes a
//    row of its table, recognised by its keys alone. Every other value stays as it is.
// 2. Missing keys leave the row's defaults. Unknown keys are noted in Tables::unknown_keys.
// 3. A file whose rows are in several lists, or in another order than in its lists, is a ReadError.
// 4. Loops over the many rows that a file may have ask the Watch.
// 5. One thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "pickle_machine.h"
#include "row_values.h"
#include "tables.h"

namespace pytracer::reading {

constexpr int64_t kMostDevices = 256;  // torch counts devices in 8 bits
constexpr Meant kDeviceIndex{-1, kMostDevices - 1, -1};
constexpr const char* kTooManyDevices = "more devices than there can be";

class RowBuilder final : public Builder {
 public:
  RowBuilder(Tables& tables, Watch& watch);

  Value adopt(Value item) override;
  uint64_t memory() const noexcept override { return tables_.memory(); }

  // The blocks that are in a segment: the first rows of their table.
  uint64_t claimed_blocks() const noexcept { return claimed_blocks_; }
  // Notes a key that the reader does not know, for a kind of dict.
  void note_unknown(std::string_view row, Value key);

 private:
  enum class Row : uint8_t { none, event, frame, block, segment };
  using Items = Heap::Items;

  Row row_kind(const Items& items) const noexcept;
  Value event(const Items& items);
  Value frame(const Items& items);
  Value block(const Items& items);
  Value segment(const Items& items);
  // What an event's key "allocation" says. The event is the last row.
  void allocation(Value dict);
  // The stack with what the dict says of an autograd node.
  uint32_t with_backward(const Items& items, uint32_t stack);
  // The same, but for the keys that with_backward() reads.
  void note_unknown_in_row(std::string_view row, Value key);
  void read_history(Value list, int64_t& requested, uint32_t& stack);
  void claim_blocks(RowRange rows, size_t segment, int64_t address);

  Tables& tables_;
  Watch& watch_;
  RowValues values_;
  uint64_t claimed_blocks_ = 0;
};

}  // namespace pytracer::reading
