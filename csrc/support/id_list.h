// Items of an array, by their ids, in a list through their `next`: the places that freed items left,
// or items that wait for something. Id 0 is no item.
#pragma once

#include <cstdint>

namespace pytracer {

struct IdList {
  uint32_t first = 0;
  uint32_t count = 0;

  template <class Items>
  void push(Items& items, uint32_t id) noexcept {
    items[id].next = first;
    first = id;
    ++count;
  }
  // The list has one.
  template <class Items>
  uint32_t pop(Items& items) noexcept {
    const uint32_t id = first;
    first = items[id].next;
    --count;
    return id;
  }
  // Of free places: one of them, or a new one at the end of the array.
  template <class Items>
  uint32_t place(Items& items, uint32_t& end) noexcept {
    return count != 0 ? pop(items) : end++;
  }
};

}  // namespace pytracer
