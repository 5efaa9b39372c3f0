#include "interned_rows.h"

#include <algorithm>

namespace pytracer::reading {

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
        add_row({0, 0, 0, false});
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
