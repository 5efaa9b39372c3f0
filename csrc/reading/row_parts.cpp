// What the rows of the tables are made of: numbers, texts, stacks, pools.
#include <algorithm>

#include "tables.h"

namespace pytracer::reading {

int64_t Tables::integer(Value value, const char* what) const {
  switch (value.kind()) {
    case Kind::integer:
    case Kind::boolean: return value.number();
    case Kind::wide_integer: return heap.wide_integer(value);
    case Kind::none: return 0;
    case Kind::real: {
      const double number = heap.real(value);
      if (number > -0x1p62 && number < 0x1p62) return static_cast<int64_t>(number);
      break;
    }
    default: break;
  }
  wrong(what);
}

uint32_t Tables::text(Value value, const char* what) const {
  if (value.is(Kind::none)) return 0;
  if (!value.is(Kind::string)) wrong(what);
  return value.index();
}

uint32_t Tables::stack(Value value) {
  if (value.is(Kind::none)) return 0;
  if (!is_list(value)) wrong("a list of frames");
  if (heap.is_resolved(value)) {
    if (!heap.resolved(value).is(Kind::stack)) wrong("a list of frames");
    return heap.resolved(value).index();
  }
  const std::vector<Value>& items = heap.items(value);
  uint64_t hash = items.size();
  for (const Value each : items) {
    if (!each.is(Kind::frame)) wrong("a list of frames");
    hash = mix(hash, each.index());
  }
  uint32_t found = 0;
  if (!items.empty()) {
    const uint32_t next = static_cast<uint32_t>(stacks.ends.size());
    found = stack_index_.find_or_add(hash, next, [&](uint32_t each) {
      const auto begin = static_cast<size_t>(stacks.ends[each - 1]);  // 0, the empty one, is not asked
      return static_cast<size_t>(stacks.ends[each]) - begin == items.size() &&
             std::equal(items.begin(), items.end(), stacks.frame.begin() + begin,
                        [](Value left, uint32_t right) { return left.index() == right; });
    });
    if (found == next) {
      for (const Value each : items) stacks.frame.push_back(each.index());
      stacks.ends.push_back(static_cast<int64_t>(stacks.frame.size()));
    }
  }
  heap.resolve(value, Value(Kind::stack, found));
  heap.discard(value);
  return found;
}

uint32_t Tables::pool(Value value) {
  if (value.is(Kind::none)) return 0;
  if (!value.is(Kind::object) || heap.shape(value) == Shape::dict) wrong("a pool id");
  if (heap.is_resolved(value)) {
    if (!heap.resolved(value).is(Kind::pool)) wrong("a pool id");
    return heap.resolved(value).index();
  }
  const std::vector<Value>& items = heap.items(value);
  if (items.size() != 2) wrong("a pool id");
  const int64_t high = integer(items[0], "a pool id"), low = integer(items[1], "a pool id");
  const uint64_t hash = mix(mix(0, static_cast<uint64_t>(high)), static_cast<uint64_t>(low));
  const uint32_t next = static_cast<uint32_t>(pools.size() / 2);
  const uint32_t found = pool_index_.find_or_add(hash, next, [&](uint32_t each) {
    return pools[2 * each] == high && pools[2 * each + 1] == low;
  });
  if (found == next) {
    pools.push_back(high);
    pools.push_back(low);
  }
  heap.resolve(value, Value(Kind::pool, found));
  heap.discard(value);
  return found;
}

uint8_t Tables::action(Value value) {
  if (!value.is(Kind::string)) wrong("an event's action");
  const uint32_t string = value.index();
  if (string >= action_of_string_.size()) action_of_string_.resize(string + 1, kNoAction);
  uint8_t& known = action_of_string_[string];
  if (known == kNoAction) {
    if (actions.size() == kNoAction) damaged("more than 255 kinds of actions");
    known = static_cast<uint8_t>(actions.size());
    actions.emplace_back(strings.at(string));
  }
  return known;
}

uint8_t Tables::state_of(Value value) const noexcept {
  if (!value.is(Kind::string)) return kNoState;
  const std::string_view name = strings.at(value.index());
  if (name == "active_allocated") return kAllocated;
  if (name == "inactive") return kInactive;
  // torch writes active_pending_free; its documentation has another word for it.
  if (name == "active_pending_free" || name == "active_awaiting_free") return kPendingFree;
  return kNoState;
}

bool Tables::is_list(Value value) const noexcept {
  return value.is(Kind::object) && heap.shape(value) == Shape::list;
}

// A list of rows, which must stand one after the other in their table, as a pickler writes them.
Range Tables::rows(Value list, Kind kind, const char* what) const {
  if (!is_list(list)) wrong(what);
  const std::vector<Value>& items = heap.items(list);
  if (items.empty()) return {0, 0};
  const uint64_t begin = static_cast<uint64_t>(items.front().number());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(kind)) wrong(what);
    if (static_cast<uint64_t>(items[i].number()) != begin + i) {
      damaged(std::string(what) + " are in another list too, or in another order");
    }
  }
  return {begin, begin + items.size()};
}

void Tables::wrong(const char* what) { damaged(std::string(what) + " is not what it should be"); }

}  // namespace pytracer::reading
