#include "interned_rows.h"

#include <algorithm>

#include "support/mix.h"

namespace pytracer::reading {

uint32_t FrameRows::intern(uint32_t file, uint32_t function, int64_t line_number) {
  const uint64_t hash = mix(mix(mix(0, file), function), static_cast<uint64_t>(line_number));
  return index_.intern(
      hash, line.size(),
      [&](uint32_t row) {
        return filename[row] == file && name[row] == function && line[row] == line_number;
      },
      [&] {
        filename.push_back(file);
        name.push_back(function);
        line.push_back(line_number);
      });
}

uint32_t StackRows::intern(const Heap::Items& items) {
  uint64_t hash = items.size();
  for (const Value item : items) {
    watch_.tick();
    if (!item.is(Kind::frame)) wrong_type("a list of frames");
    hash = mix(hash, item.index());
  }
  if (items.empty()) return 0;
  return index_.intern(
      hash, ends.size(),
      [&](uint32_t row) {  // never row 0, which is not in the index
        const auto begin = static_cast<size_t>(ends[row - 1]);
        return static_cast<size_t>(ends[row]) - begin == items.size() &&
               std::equal(items.begin(), items.end(), frame.begin() + begin,
                          [](Value item, uint32_t number) { return item.index() == number; });
      },
      [&] {
        for (const Value item : items) frame.push_back(item.index());
        add_row({});
      });
}

uint32_t StackRows::intern(uint32_t stack, const Backward& backward) {
  const uint64_t hash = mix(mix(mix(mix(mix(0, stack), backward.forward), backward.node),
                                backward.phase),
                            uint64_t{backward.is_exact});
  return backward_index_.intern(
      hash, ends.size(),
      [&](uint32_t row) {
        return own_[row] == stack && forward[row] == backward.forward &&
               node[row] == backward.node && phase[row] == backward.phase &&
               is_exact[row] == backward.is_exact;
      },
      [&] {
        const int64_t begin = stack != 0 ? ends[stack - 1] : 0;
        for (int64_t i = begin; i < ends[stack]; ++i) {
          watch_.tick();
          const uint32_t copied = frame[static_cast<size_t>(i)];
          frame.push_back(copied);
        }
        add_row(backward, stack);
      });
}

uint32_t PoolRows::intern(int64_t high, int64_t low) {
  const uint64_t hash = mix(mix(0, static_cast<uint64_t>(high)), static_cast<uint64_t>(low));
  return index_.intern(
      hash, numbers.size() / 2,
      [&](uint32_t row) { return numbers[2 * row] == high && numbers[2 * row + 1] == low; },
      [&] {
        numbers.push_back(high);
        numbers.push_back(low);
      });
}

uint8_t ActionRows::intern(uint32_t text) {
  while (text >= by_text_.size()) by_text_.push_back(kNone);
  uint8_t& action = by_text_[text];
  if (action == kNone) {
    if (texts.size() == kNone) damaged("more than 255 kinds of actions");
    action = static_cast<uint8_t>(texts.size());
    texts.push_back(text);
  }
  return action;
}

}  // namespace pytracer::reading
