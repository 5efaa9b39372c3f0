// Turns a TraceEntry of torch's or torch_npu's caching allocator into a pytracer_event.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "hook_abi.h"

// torch's structures grow with every release: has_FIELD<Struct> says whether the running torch's
// structure has FIELD.
#define PYTRACER_HAS(name, expression) \
  template <class T, class = void>     \
  struct name : std::false_type {};    \
  template <class T>                   \
  struct name<T, std::void_t<decltype(expression)>> : std::true_type {}
#define PYTRACER_FIELD(field) PYTRACER_HAS(has_##field, std::declval<const T&>().field)

static_assert(PYTRACER_ACTION_COUNT == 11, "known_actions() translates each action of hook_abi.h");

namespace {

PYTRACER_FIELD(mempool_);
PYTRACER_FIELD(compile_context_);
PYTRACER_FIELD(user_metadata_);
PYTRACER_FIELD(internal_metadata_);
PYTRACER_FIELD(ANNOTATE);            // an Action of torch since 2.14.1
PYTRACER_FIELD(WORKSPACE_SNAPSHOT);  // an Action of torch_npu

// Our actions, by the number that TraceEntry::Action gives them in the running torch. A torch that
// inserts an unknown action does not compile. The events of an action that it appends are left out.
template <class Entry>
constexpr auto known_actions() {
  constexpr size_t known = 9 + has_ANNOTATE<Entry>::value + has_WORKSPACE_SNAPSHOT<Entry>::value;
  std::array<uint8_t, known> actions{};
#define PYTRACER_ACTION(name)                                                                   \
  static_assert(Entry::name < known,                                                            \
                "TraceEntry::" #name " comes after an action that this pytracer does not know; " \
                "install a newer pytracer");                                                    \
  actions[Entry::name] = PYTRACER_##name
  PYTRACER_ACTION(ALLOC);
  PYTRACER_ACTION(FREE_REQUESTED);
  PYTRACER_ACTION(FREE_COMPLETED);
  PYTRACER_ACTION(SEGMENT_ALLOC);
  PYTRACER_ACTION(SEGMENT_FREE);
  PYTRACER_ACTION(SEGMENT_MAP);
  PYTRACER_ACTION(SEGMENT_UNMAP);
  PYTRACER_ACTION(SNAPSHOT);
  PYTRACER_ACTION(OOM);
  if constexpr (has_ANNOTATE<Entry>::value) {
    PYTRACER_ACTION(ANNOTATE);
  }
  if constexpr (has_WORKSPACE_SNAPSHOT<Entry>::value) {
    PYTRACER_ACTION(WORKSPACE_SNAPSHOT);
  }
#undef PYTRACER_ACTION
  return actions;
}

// Whether torch noted a compile context; without one, it notes "N/A" or nothing.
template <class Entry>
bool is_compiled(const Entry& entry) noexcept {
  const std::string& text = entry.compile_context_;
  return !text.empty() && !(text.size() == 3 && std::memcmp(text.data(), "N/A", 3) == 0);
}

// Looks at the texts' sizes alone: most entries have no text, and their characters lie elsewhere.
template <class Entry>
bool has_labels(const Entry& entry) noexcept {
  bool any = false;
  if constexpr (has_compile_context_<Entry>::value) any = any || is_compiled(entry);
  if constexpr (has_user_metadata_<Entry>::value) any = any || !entry.user_metadata_.empty();
  if constexpr (has_internal_metadata_<Entry>::value) {
    any = any || !entry.internal_metadata_.empty();
  }
  return any;
}

// Calls `record` with the event of a device, unless its action is unknown. `kHasClock` says whether
// entries have ticks.
template <bool kHasClock, class Entry>
void report_entry(const Entry& entry, int16_t device, pytracer_record_fn record) noexcept {
  static constexpr auto kActions = known_actions<Entry>();
  const auto action = static_cast<size_t>(entry.action_);
  if (device < 0 || action >= kActions.size()) return;
  pytracer_event event;  // every field is set below
  event.address = static_cast<uint64_t>(entry.addr_);
  event.size = static_cast<uint64_t>(entry.size_);
  event.stream = reinterpret_cast<uint64_t>(entry.stream_);
  event.pool_high = event.pool_low = 0;
  if constexpr (has_mempool_<Entry>::value) {
    event.pool_high = entry.mempool_.first;
    event.pool_low = entry.mempool_.second;
  }
  event.ticks = 0;
  if constexpr (kHasClock) event.ticks = static_cast<int64_t>(entry.time_.approx_t_);
  event.labels = nullptr;
  event.device = device;
  event.action = kActions[action];
  if (!has_labels(entry)) {
    record(&event);
    return;
  }
  pytracer_labels labels{"", "", ""};
  if constexpr (has_compile_context_<Entry>::value) {
    if (is_compiled(entry)) labels.compile_context = entry.compile_context_.c_str();
  }
  if constexpr (has_user_metadata_<Entry>::value) {
    labels.user_metadata = entry.user_metadata_.c_str();
  }
  if constexpr (has_internal_metadata_<Entry>::value) {
    labels.internal_metadata = entry.internal_metadata_.c_str();
  }
  event.labels = &labels;
  record(&event);
}

}  // namespace
