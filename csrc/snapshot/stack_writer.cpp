#include "snapshot/stack_writer.h"


#include "record/node_types.h"
#include "record/phases.h"
#include "support/mix.h"

namespace pytracer {

void StackWriter::write_stack(uint32_t id, bool forward, const std::string* parameter) {
  const Backward backward = id != 0 ? generation_of(id).tree->backward(id) : Backward{};
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
    const uint32_t type = backward.node_type;
    out_.once(parameter != nullptr ? parameter_memos_[{type, parameter}] : item_at(node_memos_, type), [&] {
      const std::string name = NodeTypes::instance().name(type);
      out_.string(parameter != nullptr ? name + " of " + to_utf8(*parameter) : name);
    });
  }
}

StackWriter::Generation& StackWriter::generation_of(uint32_t stack) {
  for (const auto& known : generations_) {
    if (known->tree->has(stack)) return *known;
  }
  generations_.push_back(std::make_unique<Generation>());
  generations_.back()->tree = stacks_->generation_of(stack);
  return *generations_.back();
}

void StackWriter::write_frames(uint32_t stack) {
  if (stack == 0) return out_.once(no_frames_, [&] { out_.empty_list(); });
  Generation& generation = generation_of(stack);
  Memo& memo = item_at(generation.stacks, generation.tree->place_of_stack(stack));
  if (memo != 0) return out_.recall(memo);
  CallTree::Frames frames = generation.tree->frames(stack, depth_);
  std::pair<uint64_t, uint64_t> hash{1, frames.innermost_first.size()};
  for (uint32_t& frame : frames.innermost_first) {
    frame = frame_number(generation, frame);
    hash = {mix(hash.first, frame), (hash.second + frame) * 0xc2b2ae3d27d4eb4full};
  }
  const auto [same, is_new] = written_stacks_.emplace(hash, 0);
  if (!is_new) {
    memo = same->second;
    return out_.recall(memo);
  }
  out_.empty_list();
  memo = same->second = out_.remember();
  truncated_ += frames.is_truncated;
  out_.mark();
  for (const uint32_t frame : frames.innermost_first) {
    write_frame(frame);
    if (!generated_code_.empty()) write_sources(frame);
  }
  out_.append_items();
}

// Outermost first, each frame as Python's traceback module formats one whose source it does not have.
void StackWriter::write_forward_frames(uint32_t stack) {
  Generation& generation = generation_of(stack);
  Memo& memo = item_at(generation.forward_stacks, generation.tree->place_of_stack(stack));
  if (memo != 0) return out_.recall(memo);
  out_.empty_list();
  memo = out_.remember();
  const std::vector<uint32_t> frames = generation.tree->frames(stack, depth_).innermost_first;
  out_.mark();
  for (auto each = frames.rbegin(); each != frames.rend(); ++each) {
    const uint32_t number = frame_number(generation, *each);
    out_.once(item_at(line_memos_, number), [&] {
      const Frame& frame = *frames_[number];
      const std::string_view file = texts_[frame.filename].first;
      const std::string* name = new_name(file);
      std::string line = "  File \"" + (name ? *name : std::string(file)) + "\", line ";
      line.append(std::to_string(frame.line)).append(", in ").append(texts_[frame.name].first);
      out_.string(line + "\n");
    });
  }
  out_.append_items();
}

// Two instructions of one line read the same in a file, so they are one frame there.
uint32_t StackWriter::frame_number(Generation& generation, uint32_t id) {
  uint32_t& number = item_at(generation.frames, id);
  if (number == 0) {
    const CallTree::Frame& frame = generation.tree->frame(id);
    const Frame key{text_number(generation, generation.tree->filename(frame)),
                    text_number(generation, generation.tree->name(frame)), frame.line};
    const auto [known, is_new] = numbers_.emplace(key, static_cast<uint32_t>(frames_.size()));
    if (is_new) frames_.push_back(&known->first);
    number = known->second;
  }
  return number;
}

uint32_t StackWriter::text_number(Generation& generation, uint32_t name) {
  uint32_t& number = item_at(generation.texts, name);
  if (number == 0) {
    const std::string_view text = generation.tree->text(name);
    const auto [known, is_new] = text_numbers_.emplace(text, static_cast<uint32_t>(texts_.size()));
    if (is_new) texts_.push_back({text, 0});
    number = known->second;
  }
  return number;
}

void StackWriter::write_frame(uint32_t number) {
  out_.once(item_at(frame_memos_, number), [&] {
    const Frame& frame = *frames_[number];
    const std::string* name = new_name(texts_[frame.filename].first);
    if (name != nullptr) return write_frame_dict(*name, frame.name, frame.line);
    write_frame_dict(frame.filename, frame.name, frame.line);
  });
}

void StackWriter::write_sources(uint32_t number) {
  const Frame& frame = *frames_[number];
  const auto found = generated_code_.find({std::string(texts_[frame.filename].first), frame.line});
  if (found == generated_code_.end()) return;
  for (const SourceFrame& source : found->second) {
    out_.once(source_memos_[{source.filename, source.name, source.line}],
              [&] { write_frame_dict(source.filename, source.name, source.line); });
  }
}
void StackWriter::write_text(uint32_t number) {
  auto& known = texts_[number];
  out_.once(known.second, [&] { out_.string(known.first); });
}

const std::string* StackWriter::new_name(std::string_view file) const {
  if (file_names_.empty()) return nullptr;
  const auto found = file_names_.find(std::string(file));
  return found != file_names_.end() ? &found->second : nullptr;
}

}  // namespace pytracer
