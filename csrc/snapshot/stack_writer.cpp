#include "snapshot/stack_writer.h"

#include <string>

#include "record/node_types.h"
#include "record/phases.h"
#include "support/utf8.h"

namespace pytracer {

void StackWriter::write_stack(uint32_t id, bool forward, const std::string* parameter) {
  const Backward backward = id != 0 ? stacks_->backward(id) : Backward{};
  out_.key(frames_key_);
  write_frames(backward.own);
  if (!forward) return;
  if (backward.forward != 0) {
    out_.key(forward_frames_);
    write_forward_frames(backward.forward);
    out_.key(forward_exact_);
    out_.boolean(backward.is_exact);
  }
  if (backward.phase != 0) {
    out_.key(forward_phase_);
    write_text(Phases::instance().name(backward.phase));
  }
  if (backward.node_type != 0) {
    out_.key(autograd_node_);
    if (parameter != nullptr) {
      write_node_of(backward.node_type, *parameter);
    } else {
      write_node_type(backward.node_type);
    }
  }
}

void StackWriter::write_frames(uint32_t id) {
  Memo& memo = memo_at(stack_memos_, id);
  if (memo != 0) return out_.recall(memo);
  const StackTable::Stack none{};
  const StackTable::Stack& stack = id != 0 ? stacks_->stack(id) : none;
  const uint32_t count = std::min<uint32_t>(stack.frames, depth_);
  std::pair<uint64_t, uint64_t> hash{1, count};
  frames_.clear();
  for (uint32_t inner = id; frames_.size() < count; inner = stacks_->stack(inner).outer) {
    const uint32_t frame = stacks_->stack(inner).frame;
    const uint64_t number = frame_number(frame);
    frames_.push_back(frame);
    hash.first = (hash.first ^ number) * 0x9e3779b97f4a7c15ull;
    hash.second = (hash.second + number) * 0xc2b2ae3d27d4eb4full;
  }
  const auto [same, is_new] = written_stacks_.emplace(hash, 0);
  if (!is_new) {
    memo = same->second;
    return out_.recall(memo);
  }
  out_.empty_list();
  memo = same->second = out_.remember();
  if (count == 0) return;
  truncated_ += stack.truncated || count < stack.frames;
  out_.mark();
  for (const uint32_t frame : frames_) {
    write_frame(frame);
    if (!generated_code_.empty()) write_sources(frame);
  }
  out_.append_items();
}

// Outermost first, each frame as a line of text.
void StackWriter::write_forward_frames(uint32_t id) {
  Memo& memo = memo_at(forward_memos_, id);
  if (memo != 0) return out_.recall(memo);
  out_.empty_list();
  memo = out_.remember();
  frames_.clear();
  for (; id != 0 && frames_.size() < depth_; id = stacks_->stack(id).outer) {
    frames_.push_back(stacks_->stack(id).frame);
  }
  out_.mark();
  for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) write_forward_frame(*frame);
  out_.append_items();
}

// As Python's traceback module formats a frame whose source it does not have.
void StackWriter::write_forward_frame(uint32_t id) {
  Memo& memo = memo_at(line_memos_, frame_number(id));
  if (memo != 0) return out_.recall(memo);
  const StackTable::Frame& frame = stacks_->frame(id);
  const uint32_t file = stacks_->filename(frame);
  const std::string* name = new_name(file);
  out_.string("  File \"" + (name ? *name : stacks_->string(file)) + "\", line " +
              std::to_string(frame.line) + ", in " + stacks_->string(stacks_->name(frame)) + "\n");
  memo = out_.remember();
}

void StackWriter::write_node_type(uint32_t type) {
  Memo& memo = memo_at(node_memos_, type);
  if (memo != 0) return out_.recall(memo);
  out_.string(NodeTypes::instance().name(type));
  memo = out_.remember();
}

void StackWriter::write_node_of(uint32_t type, const std::string& parameter) {
  Memo& memo = parameter_memos_[{type, &parameter}];
  if (memo != 0) return out_.recall(memo);
  out_.string(NodeTypes::instance().name(type) + " of " + to_utf8(parameter));
  memo = out_.remember();
}

// Two instructions of one line read the same in a file, so they are one frame there.
uint32_t StackWriter::frame_number(uint32_t id) {
  uint32_t& number = memo_at(frame_numbers_, id);
  if (number == 0) {
    const StackTable::Frame& frame = stacks_->frame(id);
    const auto key = std::tuple(stacks_->filename(frame), stacks_->name(frame), frame.line);
    number = numbers_.emplace(key, static_cast<uint32_t>(numbers_.size() + 1)).first->second;
  }
  return number;
}

void StackWriter::write_frame(uint32_t id) {
  Memo& memo = memo_at(frame_memos_, frame_number(id));
  if (memo != 0) return out_.recall(memo);
  const StackTable::Frame& frame = stacks_->frame(id);
  out_.dict();
  out_.key(filename_);
  write_filename(stacks_->filename(frame));
  out_.key(name_);
  write_string(stacks_->name(frame));
  out_.key(line_);
  out_.integer(frame.line);
  out_.set_items();
  memo = out_.remember();
}

void StackWriter::write_sources(uint32_t id) {
  const StackTable::Frame& frame = stacks_->frame(id);
  const std::string& filename = stacks_->string(stacks_->filename(frame));
  const auto found = generated_code_.find({filename, frame.line});
  if (found == generated_code_.end()) return;
  for (const SourceFrame& source : found->second) {
    Memo& memo = source_memos_[{source.filename, source.name, source.line}];
    if (memo != 0) {
      out_.recall(memo);
      continue;
    }
    out_.dict();
    out_.key(filename_);
    write_text(source.filename);
    out_.key(name_);
    write_text(source.name);
    out_.key(line_);
    out_.integer(source.line);
    out_.set_items();
    memo = out_.remember();
  }
}

void StackWriter::write_text(std::string_view text) {
  Memo& memo = text_memos_[text];
  if (memo != 0) return out_.recall(memo);
  out_.string(to_utf8(text));
  memo = out_.remember();
}

const std::string* StackWriter::new_name(uint32_t id) const {
  if (file_names_.empty()) return nullptr;
  const auto found = file_names_.find(stacks_->string(id));
  return found != file_names_.end() ? &found->second : nullptr;
}

void StackWriter::write_filename(uint32_t id) {
  const std::string* name = new_name(id);
  if (name) return write_text(*name);
  write_string(id);
}

void StackWriter::write_string(uint32_t id) {
  Memo& memo = memo_at(string_memos_, id);
  if (memo != 0) return out_.recall(memo);
  out_.string(stacks_->string(id));
  memo = out_.remember();
}

}  // namespace pytracer
