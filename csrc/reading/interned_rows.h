// Texts, frames, stacks, memory pools and actions of a file, each kept once and named by its row.
//
// Row 0 of the stacks is the empty stack, row 0 of the pools the default pool. One thread.
#pragma once

#include <functional>
#include <string_view>

#include "hash_index.h"
#include "support/mix.h"
#include "support/utf8.h"
#include "value.h"

namespace pytracer::reading {

// All texts of a file; "" has the number 0. A text is UTF-8 and may have lone surrogates, as Python's pickle writes
// them. Any other text is a ReadError.
class Strings {
 public:
  explicit Strings(Watch& watch) : index_(watch) { intern(""); }

  uint32_t intern(std::string_view text) {
    return index_.intern(
        std::hash<std::string_view>()(text), begins_.size(),
        [&](uint32_t number) { return at(number) == text; },
        [&] {
          if (!is_utf8(text, Surrogates::allowed)) damaged("a text is not UTF-8");
          begins_.push_back(bytes_.size());
          bytes_.append(text.data(), text.size());
        });
  }

  std::string_view at(uint32_t number) const noexcept {
    const uint64_t begin = begins_[number];
    const uint64_t end = number + 1 < begins_.size() ? begins_[number + 1] : bytes_.size();
    return {bytes_.data() + begin, end - begin};
  }
  uint32_t size() const noexcept { return static_cast<uint32_t>(begins_.size()); }
  uint64_t memory() const noexcept { return memory_of(begins_, bytes_, index_); }

 private:
  Column<uint64_t> begins_;
  Column<char> bytes_;
  HashIndex index_;
};

template <class... Values>
class InternedRows {
 public:
  explicit InternedRows(Watch& watch) : index_(watch) {}
  uint32_t intern(Values... values) {
    uint64_t hash = 0;
    ((hash = mix(hash, static_cast<uint64_t>(values))), ...);
    const auto is_equal = [&](uint32_t row) {
      return std::apply([&](const auto&... column) { return ((column[row] == values) && ...); }, columns_);
    };
    return index_.intern(hash, std::get<0>(columns_).size(), is_equal, [&] {
      std::apply([&](auto&... column) { (column.push_back(values), ...); }, columns_);
    });
  }
  uint64_t memory() const noexcept {
    return index_.memory() + std::apply([](const auto&... column) { return memory_of(column...); }, columns_);
  }
  static auto& columns_of(InternedRows& self) { return self.columns_; }

 private:
  std::tuple<Column<Values>...> columns_;
  HashIndex index_;
};

using FrameRows = InternedRows<uint32_t, uint32_t, int64_t>;  // texts: the file and the name; the line
using PoolRows = InternedRows<int64_t, int64_t>;

class StackRows {
 public:
  // What the stack of an allocation in an autograd node has besides its frames.
  struct Backward {
    uint32_t forward = 0;  // the row of the stack of the forward call; 0: unknown
    uint32_t node = 0;     // the text that names the node; 0: unknown
    uint32_t phase = 0;    // the text that names the phase of the forward call; 0: none, or unknown
    bool is_exact = true;  // `forward` and `phase` are those of this node, not of a neighbour. torch does not say so
  };

  explicit StackRows(Watch& watch) : watch_(watch), index_(watch), backward_(watch) {
    add_row({0, 0, 0, false});
  }
  // `items` are frames; any other value is a ReadError.
  uint32_t intern(const Heap::Items& items);
  // A row with the frames of the row `stack`, which intern() has returned.
  uint32_t intern(uint32_t stack, const Backward& backward);
  uint64_t memory() const noexcept {
    return memory_of(ends, frame, forward, node, phase, is_exact, index_, backward_, backward_rows_);
  }

  Column<int64_t> ends;  // in `frame`; row i begins where row i - 1 ends
  Column<uint32_t> frame;
  Column<uint32_t> forward, node, phase;  // by row, as in Backward
  Column<bool> is_exact;

 private:
  void add_row(const Backward& backward) {
    ends.push_back(static_cast<int64_t>(frame.size()));
    forward.push_back(backward.forward);
    node.push_back(backward.node);
    phase.push_back(backward.phase);
    is_exact.push_back(backward.is_exact);
  }

  Watch& watch_;
  HashIndex index_;
  InternedRows<uint32_t, uint32_t, uint32_t, uint32_t, bool> backward_;  // the row with the frames, and a Backward
  Column<uint32_t> backward_rows_;                                       // of each of them
};

// Actions are numbered in the order of their appearance, after those of allocator_rules.h.
class ActionRows {
 public:
  static constexpr uint8_t kNone = UINT8_MAX;

  uint8_t intern(uint32_t text);
  uint64_t memory() const noexcept { return memory_of(texts, by_text_); }

  Column<uint32_t> texts;

 private:
  Column<uint8_t> by_text_;  // kNone: no action has this text yet
};

}  // namespace pytracer::reading
