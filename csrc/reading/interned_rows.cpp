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
  const uint32_t number =
      backward_.intern(stack, backward.forward, backward.node, backward.phase, backward.is_exact);
  if (number == backward_rows_.size()) {
    for (int64_t i = stack != 0 ? ends[stack - 1] : 0; i < ends[stack]; ++i) {
      watch_.tick();
      const uint32_t copied = frame[static_cast<size_t>(i)];
      frame.push_back(copied);
    }
    backward_rows_.push_back(static_cast<uint32_t>(ends.size()));
    add_row(backward);
  }
  return backward_rows_[number];
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

Value Heap::make(Shape shape) {
  const Object object{0, shape, false, false, Value()};
  uint32_t index;
  if (!free_objects_.empty()) {
    index = free_objects_.back();
    free_objects_.pop_back();
    objects_[index] = object;
  } else {
    if (objects_.size() == UINT32_MAX) damaged("more than 2^32 lists and dicts");
    index = static_cast<uint32_t>(objects_.size());
    objects_.push_back(object);
  }
  return Value(Kind::object, index);
}

void Heap::append(Value value, const Value* values, size_t count) {
  Object& object = objects_[value.index()];
  if (object.is_resolved) damaged("a list or dict is changed after it was used");
  if (object.items == 0) {
    if (free_items_.empty()) {
      items_.emplace_back();
      free_items_.push_back(static_cast<uint32_t>(items_.size() - 1));
    }
    object.items = free_items_.back();
    free_items_.pop_back();
  }
  Items& items = items_[object.items];
  bytes_of_items_ -= items.memory();
  items.append(values, count);
  bytes_of_items_ += items.memory();
}

Value Heap::resolve(Value value, Value to) {
  Object& object = objects_[value.index()];
  drop_items(object);
  object.is_resolved = true;
  object.resolved = to;
  return to;
}

void Heap::discard(Value value) {
  Object& object = objects_[value.index()];
  if (object.is_shared) return;
  drop_items(object);
  free_objects_.push_back(value.index());
}

void Heap::drop_items(Object& object) {
  if (object.items == 0) return;
  Items& items = items_[object.items];
  items.clear();
  if (items.memory() > kKeptBytes) {
    bytes_of_items_ -= items.memory();
    items.free();
  }
  free_items_.push_back(object.items);
  object.items = 0;
}

Value Heap::integer(int64_t number) {
  if (Value::fits(number)) return Value(Kind::integer, static_cast<uint64_t>(number));
  wide_integers_.push_back(number);
  return Value(Kind::wide_integer, wide_integers_.size() - 1);
}

Value Heap::long_integer(int64_t high, uint64_t low) {
  wide_integers_.push_back(high);
  wide_integers_.push_back(static_cast<int64_t>(low));
  return Value(Kind::long_integer, wide_integers_.size() - 2);
}

Value Heap::real(double number) {
  reals_.push_back(number);
  return Value(Kind::real, reals_.size() - 1);
}

}  // namespace pytracer::reading
