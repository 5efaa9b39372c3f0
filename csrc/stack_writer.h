// Writes stacks into a pickle, each list of frames, each frame and each string once.
//
// Lines and names must be resolved (StackTable::resolve). One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "pickle_writer.h"
#include "stack_table.h"

namespace pytracer {

class StackWriter {
 public:
  // Stacks are cut at `depth` frames. `stacks` null: there are none.
  StackWriter(PickleWriter& out, const std::shared_ptr<StackTable>& stacks, uint32_t depth)
      : out_(out), stacks_(stacks), depth_(depth) {}

  // The list of frames of a stack, innermost first; empty for stack 0.
  void frames(uint32_t stack);
  // A frame's key, which others may use too.
  PickleWriter::Key& name() noexcept { return name_; }
  // Of the distinct stacks written, those of which frames are missing.
  uint64_t truncated() const noexcept { return truncated_; }

 private:
  using Memo = PickleWriter::Memo;
  using Key = PickleWriter::Key;

  uint32_t number_of(uint32_t frame);
  void frame(uint32_t id);
  void text(uint32_t string);

  static Memo& memo_of(std::vector<Memo>& memos, uint32_t id) {
    if (id >= memos.size()) memos.resize(std::max<size_t>(id + 1, memos.size() * 2));
    return memos[id];
  }

  PickleWriter& out_;
  const std::shared_ptr<StackTable> stacks_;
  const uint32_t depth_;
  std::vector<Memo> stack_memos_, frame_memos_, string_memos_;  // by id, by number, by id
  std::vector<uint32_t> frame_numbers_;                         // by id
  std::map<std::tuple<uint32_t, uint32_t, int32_t>, uint32_t> numbers_;
  std::map<std::pair<uint64_t, uint64_t>, Memo> written_stacks_;  // by a hash of their numbers
  uint64_t truncated_ = 0;
  Key filename_{"filename"}, name_{"name"}, line_{"line"};
};

}  // namespace pytracer
