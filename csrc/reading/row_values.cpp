#include <algorithm>
#include <charconv>

#include "row_builder.h"

namespace pytracer::reading {

int64_t RowValues::integer(Value value, const char* what, const Meant& meant) const {
  const Heap& heap = tables_.heap;
  int64_t number;
  switch (value.kind()) {
    case Kind::integer:
    case Kind::boolean: number = value.number(); break;
    case Kind::wide_integer: number = heap.wide_integer(value); break;
    case Kind::long_integer:
      if (heap.high_part(value) != 0) return meant.unknown;
      number = static_cast<int64_t>(heap.low_part(value));  // 64 bits without a sign
      break;
    case Kind::real: {
      const double real = heap.real(value);
      if (!(real > -0x1p62 && real < 0x1p62)) return meant.unknown;
      number = static_cast<int64_t>(real);
      break;
    }
    case Kind::none: return meant.unknown;
    default: wrong_type(what);
  }
  return number < meant.least || number > meant.most ? meant.unknown : number;
}

uint32_t RowValues::text(Value value, const char* what) const {
  if (value.is(Kind::none)) return 0;
  if (!value.is(Kind::string)) wrong_type(what);
  return value.index();
}

// The row of an object, which intern() makes of its items unless the object has been resolved.
template <class Intern>
uint32_t RowValues::row(Value object, Kind kind, const char* what, Intern intern) {
  Heap& heap = tables_.heap;
  if (heap.is_resolved(object)) {
    if (!heap.resolved(object).is(kind)) wrong_type(what);
    return heap.resolved(object).index();
  }
  const uint32_t row = intern(heap.items(object));
  heap.resolve(object, Value(kind, row));
  heap.discard(object);
  return row;
}

uint32_t RowValues::stack(Value list) {
  if (list.is(Kind::none)) return 0;
  if (!is_list(list)) wrong_type("a list of frames");
  return row(list, Kind::stack, "a list of frames",
             [&](const Heap::Items& items) { return tables_.stacks.intern(items); });
}

uint32_t RowValues::forward_stack(Value list) {
  if (list.is(Kind::none)) return 0;
  if (!is_list(list)) wrong_type("forward_frames");
  return row(list, Kind::stack, "forward_frames", [&](const Heap::Items& texts) {
    Heap::Items frames;
    for (size_t i = texts.size(); i-- > 0;) {
      watch_.tick();
      if (!texts[i].is(Kind::string)) wrong_type("forward_frames");
      const Value frame = frame_of(texts[i].index());
      if (frame.is(Kind::frame)) frames.push_back(frame);
    }
    return tables_.stacks.intern(frames);
  });
}

// `  File "NAME", line NUMBER, in FUNCTION`, and perhaps lines of source. Other texts, such as
// "[Previous line repeated 3 more times]", are no frames: a boolean.
Value RowValues::frame_of(uint32_t text) {
  while (text >= frame_of_text_.size()) frame_of_text_.push_back(Value());
  Value& known = frame_of_text_[text];
  if (!known.is(Kind::none)) return known;
  constexpr std::string_view kBegin = "  File \"", kLine = "\", line ", kFunction = ", in ";
  known = Value(Kind::boolean, 0);
  std::string line(tables_.strings.at(text));  // a copy: new texts move the others
  line.resize(std::min(line.find('\n'), line.size()));
  if (line.compare(0, kBegin.size(), kBegin) != 0) return known;
  const size_t function = line.rfind(kFunction);
  const size_t number = line.rfind(kLine, function);
  if (function == std::string::npos || number == std::string::npos || number < kBegin.size()) {
    return known;
  }
  const size_t digits = number + kLine.size();
  const std::string_view written = std::string_view(line).substr(digits, function - digits);
  if (written != "None" && written.find_first_not_of("0123456789") != written.npos) return known;
  int64_t line_number = 0;  // unknown
  std::from_chars(written.data(), written.data() + written.size(), line_number);
  if (line_number > kLineNumber.most) line_number = kLineNumber.unknown;
  const uint32_t file =
      tables_.strings.intern(std::string_view(line).substr(kBegin.size(), number - kBegin.size()));
  const uint32_t name = tables_.strings.intern(line.substr(function + kFunction.size()));
  return frame_of_text_[text] = Value(Kind::frame, tables_.frames.intern(file, name, line_number));
}

uint32_t RowValues::pool(Value pair) {
  if (pair.is(Kind::none)) return 0;
  if (!pair.is(Kind::object) || tables_.heap.shape(pair) == Shape::dict) wrong_type("a pool id");
  return row(pair, Kind::pool, "a pool id", [&](const Heap::Items& items) {
    if (items.size() != 2) wrong_type("a pool id");
    return tables_.pools.intern(integer(items[0], "a pool id", kAny), integer(items[1], "a pool id", kAny));
  });
}

uint8_t RowValues::action(Value value) {
  if (!value.is(Kind::string)) wrong_type("an event's action");
  return tables_.actions.intern(value.index());
}

uint8_t RowValues::block_state(Value value) const noexcept {
  if (!value.is(Kind::string)) return kNoState;
  const std::string_view name = tables_.strings.at(value.index());
  if (name == "active_allocated") return kAllocated;
  if (name == "inactive") return kInactive;
  // torch writes active_pending_free; its documentation has another word for it.
  if (name == "active_pending_free" || name == "active_awaiting_free") return kPendingFree;
  return kNoState;
}
RowRange RowValues::rows(Value list, Kind kind, const char* what) const {
  if (!is_list(list)) wrong_type(what);
  const Heap::Items& items = tables_.heap.items(list);
  if (items.empty()) return {0, 0};
  const uint64_t begin = static_cast<uint64_t>(items[0].number());
  for (size_t i = 0; i < items.size(); ++i) {
    watch_.tick();
    if (!items[i].is(kind)) wrong_type(what);
    if (static_cast<uint64_t>(items[i].number()) != begin + i) {
      damaged(std::string(what) + " are in another list too, or in another order");
    }
  }
  return {begin, begin + items.size()};
}

}  // namespace pytracer::reading
