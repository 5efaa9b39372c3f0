#include "view/view.h"

#include <new>
#include <utility>

namespace pytracer {

namespace {

struct Gathering {
  AllocatorState state;
  bool out_of_memory = false;
};

// The hook calls this, and no exception may pass through the hook.
template <class Work>
void without_exceptions(void* context, Work work) noexcept {
  auto& gathering = *static_cast<Gathering*>(context);
  try {
    work(gathering.state);
  } catch (const std::bad_alloc&) {
    gathering.out_of_memory = true;
  }
}

void add_segment(void* context, const pytracer_segment* segment) noexcept {
  without_exceptions(context, [&](AllocatorState& state) {
    state.segments.push_back({*segment, state.blocks.size()});
    state.segments.back().about.blocks = nullptr;
    state.blocks.insert(state.blocks.end(), segment->blocks, segment->blocks + segment->block_count);
  });
}

void add_setting(void* context, const pytracer_setting* setting) noexcept {
  const auto text = [](const char* given) { return given != nullptr ? given : ""; };
  without_exceptions(context, [&](AllocatorState& state) {
    state.settings.push_back({*setting, text(setting->group), setting->key, text(setting->text)});
  });
}

void add_statistics(void* context, const pytracer_statistics* statistics) noexcept {
  without_exceptions(context, [&](AllocatorState& state) { state.statistics.push_back(*statistics); });
}

}  // namespace

void AllocatorState::add(AllocatorState other) {
  for (Segment& segment : other.segments) segment.first_block += blocks.size();
  segments.insert(segments.end(), other.segments.begin(), other.segments.end());
  blocks.insert(blocks.end(), other.blocks.begin(), other.blocks.end());
  if (problem.empty()) problem = std::move(other.problem);
}

AllocatorState allocator_state(const pytracer_hook& hook) {
  Gathering gathering;
  const pytracer_state_sink sink = {&gathering, &add_segment, &add_setting, &add_statistics};
  char message[512] = "";
  const bool failed = hook.snapshot(&sink, message, sizeof(message)) != PYTRACER_DONE;
  if (!failed && !gathering.out_of_memory) return std::move(gathering.state);
  AllocatorState empty;
  empty.problem = failed ? message : "out of memory";
  return empty;
}

std::vector<Event> copy_events(const DeviceView& device) {
  std::vector<Event> events(device.capture.end - device.first);
  const uint64_t first = device.capture.ring->copy(device.first, device.capture.end, events.data());
  events.erase(events.begin(), events.begin() + static_cast<ptrdiff_t>(first - device.first));
  return events;
}

EntryActions entry_actions(const Event& event, bool is_cpu) noexcept {
  if (event.action == kFreeAtOnce) return {{PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED}, 2};
  if (is_cpu && event.action == PYTRACER_ALLOC) {
    return {{PYTRACER_SEGMENT_ALLOC, PYTRACER_ALLOC}, 2};
  }
  if (is_cpu && event.action == PYTRACER_FREE_COMPLETED) {
    return {{PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED, PYTRACER_SEGMENT_FREE}, 3};
  }
  return {{event.action}, 1};
}

bool has_events(const View& view) {
  return std::any_of(view.devices.begin(), view.devices.end(), [&](const DeviceView& device) {
    return any_event(device, [&](const Event& event, uint64_t) {
      return event.action != PYTRACER_SNAPSHOT && view.shows(event.phase);
    });
  });
}

uint64_t accelerator_entries(const View& view) {
  uint64_t entries = 0;
  for (const DeviceView& device : view.devices) {
    if (device.is_cpu()) continue;
    any_event(device, [&](const Event& event, uint64_t) {
      if (view.shows(event.phase)) entries += entry_actions(event, false).count;
      return false;
    });
  }
  return entries;
}

void keep_last_entries(View& view, uint64_t most) {
  std::vector<Event> chunk(kEventChunk);
  for (DeviceView& device : view.devices) {
    uint64_t entries = 0, kept = device.capture.end;  // the first event that is kept
    for (uint64_t begin = kept; begin == kept && begin > device.first;) {
      begin = std::max(device.first, begin - std::min(begin, kEventChunk));
      const uint64_t held = device.capture.ring->copy(begin, kept, chunk.data());
      for (; kept > held; --kept) {
        entries += entry_actions(chunk[kept - 1 - begin], device.is_cpu()).count;
        if (entries > most) break;
      }
    }
    device.first = kept;
  }
}

uint32_t birth_step(const DeviceView& device, const Event& free, uint32_t step) noexcept {
  using Birth = DeviceView::Birth;
  const auto is_before = [](uint32_t given, const Birth& birth) { return given < birth.number; };
  const auto after = std::upper_bound(device.births.begin(), device.births.end(), step, is_before);
  if (free.birth() == 0 || after == device.births.begin()) return 0;
  // The block's epoch is near that of the step, so its last 16 bits tell it.
  const uint32_t near = std::prev(after)->epoch;
  const auto distance = static_cast<int16_t>(free.birth() - static_cast<uint16_t>(near));
  return device.birth_step(near + static_cast<uint32_t>(distance));
}

uint32_t visible_stack(const Event& event, Context context) noexcept {
  if (context == Context::all) return event.stack;
  if (context != Context::alloc) return 0;
  if (is_free(event)) return event.alloc_stack;
  const bool is_release = event.action == PYTRACER_SEGMENT_FREE || event.action == PYTRACER_SEGMENT_UNMAP;
  return is_release && event.alloc_stack != 0 ? event.alloc_stack : event.stack;
}

namespace {

constexpr auto by_place = [](const auto& a, const auto& b) {
  return std::pair(a.device, a.address) < std::pair(b.device, b.address);
};

// The first owner or holder at an address or behind it.
template <class Placed>
auto first_from(const std::vector<Placed>& all, uint64_t address, int device) {
  return std::partition_point(all.begin(), all.end(), [&](const Placed& each) {
    return std::pair(each.device, each.address) < std::pair(device, address);
  });
}

}  // namespace

Owners::Owners(std::vector<DeviceLog::Mark> marks, std::vector<Owner> owners,
               std::vector<Holder> holders, Missing missing, std::string unheld)
    : marks_(std::move(marks)), owners_(std::move(owners)), holders_(std::move(holders)),
      missing_(missing), unheld_(std::move(unheld)) {
  std::stable_sort(owners_.begin(), owners_.end(), by_place);
  std::stable_sort(holders_.begin(), holders_.end(), by_place);
}

Owners::Found Owners::find(uint64_t address, uint64_t size, const LiveBlock* live,
                           const DeviceLog::Capture& capture, int device) const {
  if (!was_live(live, capture, device)) return {Category::unknown, Rule::too_new};
  Found found;
  auto owner = first_from(owners_, address, device);
  for (; owner != owners_.end() && owner->device == device && owner->address - address < size;
       ++owner) {
    if (owner->size > size - (owner->address - address)) continue;
    const bool is_shared = found.first != nullptr && owner->address == found.first->address &&
                           owner->size == found.first->size;
    if (found.first == nullptr) {
      found.category = owner->category;
      found.rule = owner->rule;
    } else if (found.category != owner->category && !is_shared) {
      found.category = Category::mixed;
      found.rule = Rule::several;
    }
    if (found.first == nullptr || owner->size > found.first->size) found.first = &*owner;
    ++found.count;
  }
  // The first holder in the block, or what keeps memory that no tensor has.
  const auto holder = first_from(holders_, address, device);
  const bool is_held = holder != holders_.end() && holder->device == device && holder->address - address < size;
  const bool is_owned = found.category != Category::unknown && found.category != Category::activation;
  const std::string& text = is_held ? holder->text : unheld_;
  if (!text.empty() && (is_held || !is_owned)) found.holder = &text;
  return found;
}

const Owner* Owners::parameter_at(uint64_t address, int device) const {
  const auto first = first_from(owners_, address, device);
  const Owner* found = nullptr;
  for (auto owner = first; owner != owners_.end() && owner->device == device && owner->address == address; ++owner) {
    if (owner->category != Category::parameter) continue;
    if (found != nullptr && found->size != owner->size) return nullptr;
    if (found == nullptr) found = &*owner;
  }
  return found;
}

bool Owners::was_live(const LiveBlock* live, const DeviceLog::Capture& capture, int device) const {
  const auto mark = std::find_if(marks_.begin(), marks_.end(), [&](const DeviceLog::Mark& each) {
    return each.device == device;
  });
  if (mark == marks_.end()) return false;
  // A block that the live table never had is older than the recording, unless the table was full.
  if (live == nullptr) return mark->ever_dropped == capture.ever_dropped;
  return live->epoch < mark->epoch;
}

}  // namespace pytracer
