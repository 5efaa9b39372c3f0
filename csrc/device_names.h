// What the events of one device name by number: memory pools, and labels.
//
// 1. The writing methods run under the device's writer lock; who has a number from an event may
//    look it up on any thread, without a lock.
// 2. Bounded, see InternTable. What finds no place is named 0: the default pool, no labels.
#pragma once

#include <cstring>

#include "hook.h"
#include "intern_table.h"

namespace pytracer {

struct Pool {  // MempoolId_t
  uint64_t high;
  uint64_t low;
};

class DeviceNames {
 public:
  struct Labels {
    uint16_t compile_context, user_metadata, internal_metadata;  // 0: none
  };

  // Writer.
  uint16_t number_of_pool(uint64_t high, uint64_t low) noexcept {
    if ((high | low) == 0) return 0;  // without a Pool in memory, which would be waited for
    return pools_.intern(bytes_of(Pool{high, low}));
  }
  uint16_t number_of(const pytracer_labels* labels) noexcept {
    if (labels == nullptr) return 0;
    const Labels numbers{number_of_text(labels->compile_context),
                         number_of_text(labels->user_metadata),
                         number_of_text(labels->internal_metadata)};
    return labels_.intern(bytes_of(numbers));
  }

  Pool pool(uint16_t number) const noexcept {
    return number == 0 ? Pool{} : value_of<Pool>(pools_.at(number));
  }
  Labels labels(uint16_t number) const noexcept {
    return number == 0 ? Labels{} : value_of<Labels>(labels_.at(number));
  }
  std::string_view text(uint16_t number) const noexcept { return texts_.at(number); }
  uint64_t dropped() const noexcept {
    return pools_.dropped() + labels_.dropped() + texts_.dropped();
  }

 private:
  uint16_t number_of_text(const char* text) noexcept {
    return *text == 0 ? uint16_t{0} : texts_.intern(text);
  }
  template <class T>
  static std::string_view bytes_of(const T& value) noexcept {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  template <class T>
  static T value_of(std::string_view bytes) noexcept {
    T value{};
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  InternTable pools_{1 << 20}, labels_{1 << 19}, texts_{1 << 20};
};

}  // namespace pytracer
