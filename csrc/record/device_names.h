// The memory pools and labels that the events of one device refer to by number.
//
// 1. The intern_ methods run under the device's writer lock. A number from an event may be looked
//    up on any thread, without a lock.
// 2. Bounded, see InternTable. What finds no place gets the number 0: the default pool, no labels.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "hooks/hook_abi.h"
#include "support/intern_table.h"

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

  explicit DeviceNames(BoxPart part = {})
      : pools_(1 << 20, UINT16_MAX, (part.kind = BoxKind::pools, part)),
        labels_(1 << 19, UINT16_MAX, (part.kind = BoxKind::labels, part)),
        texts_(1 << 20, UINT16_MAX, (part.kind = BoxKind::texts, part)) {}

  // Writer.
  uint16_t intern_pool(uint64_t high, uint64_t low) noexcept {
    if ((high | low) == 0) return 0;  // before a Pool is stored and read back, which is slow
    return static_cast<uint16_t>(pools_.intern(bytes_of(Pool{high, low})));
  }
  __attribute__((noinline, cold)) uint16_t intern_labels(const pytracer_labels& labels) noexcept {
    const Labels numbers{intern_text(labels.compile_context),
                         intern_text(labels.user_metadata), intern_text(labels.internal_metadata)};
    return static_cast<uint16_t>(labels_.intern(bytes_of(numbers)));
  }

  // Takes over what another process had, from number 1 on. Returns the last numbers of a pool and of labels.
  std::pair<size_t, size_t> restore(std::vector<std::string> pools, std::vector<std::string> labels,
                                    const std::vector<std::string>& texts) {
    const auto take_over = [](InternTable& table, std::vector<std::string>& rows, size_t size) {
      for (std::string& row : rows) {
        row.resize(size);
        table.intern(row);
      }
      return rows.size();
    };
    for (const std::string& text : texts) texts_.intern(text);
    return {take_over(pools_, pools, sizeof(Pool)), take_over(labels_, labels, sizeof(Labels))};
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
  uint16_t intern_text(const char* text) noexcept {
    return static_cast<uint16_t>(*text == 0 ? 0 : texts_.intern(text));
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

  InternTable pools_, labels_, texts_;
};

}  // namespace pytracer
