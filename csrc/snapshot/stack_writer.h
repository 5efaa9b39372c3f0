// Writes stacks into a pickle: each list of frames, each frame and each string once. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record/stack_table.h"
#include "snapshot/pickle_writer.h"
#include "support/utf8.h"

namespace pytracer {

struct SourceFrame {
  std::string filename, name;  // UTF-8
  int64_t line;
};

// The frames of the program that a line of generated code was made from, by its file and line.
using GeneratedCode = std::map<std::pair<std::string, int64_t>, std::vector<SourceFrame>>;

// The names that files get in a snapshot, by their own names. Both are UTF-8.
using FileNames = std::map<std::string, std::string>;

class StackWriter {
 public:
  // Stacks are cut off after `depth` frames. `stacks` is null if there are none. The frames of
  // `generated_code`, innermost first, follow the frame that they belong to, as in torch's recorder.
  // Files of `file_names` are written under their names there.
  StackWriter(PickleWriter& out, const std::shared_ptr<StackTable>& stacks, uint32_t depth,
              const GeneratedCode& generated_code, const FileNames& file_names)
      : out_(out), stacks_(stacks), depth_(depth), generated_code_(generated_code),
        file_names_(file_names) {}

  // Writes the key "frames" and a stack's list of frames, innermost first; an empty list for stack 0.
  // With `forward`, what is known of an autograd node follows: "forward_frames", as torch writes
  // them in anomaly mode, "forward_exact", "forward_phase" and "autograd_node".
  // `parameter` is the name of the one whose gradient the node accumulates, or null. It lives as long
  // as the writer.
  void write_stack(uint32_t id, bool forward, const std::string* parameter = nullptr);
  // The key "name", which other dicts of the snapshot have too.
  PickleWriter::Key& name() noexcept { return name_; }
  // How many of the distinct stacks written lack frames.
  uint64_t truncated() const noexcept { return truncated_; }

 private:
  using Memo = PickleWriter::Memo;
  using Key = PickleWriter::Key;

  // What is known of a generation's stacks, frames and names, by their numbers in it.
  struct Generation {
    std::shared_ptr<const CallTree> tree;
    std::vector<Memo> stacks, forward_stacks;  // from the generation's first stack on
    std::vector<uint32_t> frames;              // the frame's number in the file, from 1 on
    std::vector<uint32_t> texts;               // the same for names
  };
  Generation& generation_of(uint32_t stack);
  void write_frames(uint32_t stack);
  void write_forward_frames(uint32_t stack);
  uint32_t frame_number(Generation& generation, uint32_t frame);
  uint32_t text_number(Generation& generation, uint32_t name);
  void write_frame(uint32_t number);
  void write_sources(uint32_t number);
  template <class File, class Name>
  void write_frame_dict(const File& filename, const Name& name, int64_t line) {
    out_.dict();
    out_.key(filename_);
    write_text(filename);
    out_.key(name_);
    write_text(name);
    out_.key(line_);
    out_.integer(line);
    out_.set_items();
  }
  void write_text(std::string_view text) {
    out_.once(text_memos_[text], [&] { out_.string(to_utf8(text)); });
  }
  void write_text(uint32_t number);
  // The name that a file gets; null: it keeps its own.
  const std::string* new_name(std::string_view file) const;

  template <class Item>
  static Item& item_at(std::vector<Item>& items, uint32_t index) {
    if (index >= items.size()) items.resize(std::max<size_t>(index + 1, items.size() * 2));
    return items[index];
  }

  PickleWriter& out_;
  const std::shared_ptr<StackTable> stacks_;
  const uint32_t depth_;
  const GeneratedCode& generated_code_;
  const FileNames& file_names_;
  std::map<std::tuple<std::string_view, std::string_view, int64_t>, Memo> source_memos_;
  std::map<std::string_view, Memo> text_memos_;  // of generated_code_, file_names_ and phases
  std::vector<Memo> frame_memos_;        // by frame number
  std::vector<Memo> line_memos_;         // the same
  std::vector<Memo> node_memos_;         // by type
  std::map<std::pair<uint32_t, const std::string*>, Memo> parameter_memos_;  // by type and name
  std::vector<std::unique_ptr<Generation>> generations_;
  // The frames and names of all generations.
  struct Frame {
    uint32_t filename, name;  // numbers
    int32_t line;
    bool operator<(const Frame& other) const {
      return std::tie(filename, name, line) < std::tie(other.filename, other.name, other.line);
    }
  };
  std::map<Frame, uint32_t> numbers_;
  std::vector<const Frame*> frames_{nullptr};  // by number
  std::unordered_map<std::string_view, uint32_t> text_numbers_;
  std::vector<std::pair<std::string_view, Memo>> texts_{{}};  // the same
  std::map<std::pair<uint64_t, uint64_t>, Memo> written_stacks_;  // by a hash of frame numbers
  Memo no_frames_ = 0;
  uint64_t truncated_ = 0;
  Key frames_key_{"frames"}, filename_{"filename"}, name_{"name"}, line_{"line"},
      forward_frames_{"forward_frames"}, forward_exact_{"forward_exact"},
      autograd_node_{"autograd_node"}, forward_phase_{"forward_phase"};
};

}  // namespace pytracer
