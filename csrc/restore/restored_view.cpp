#include "restore/restored_view.h"

#include <cstring>
#include <deque>
#include <set>
#include <utility>

#include "record/node_types.h"
#include "session/box_notes.h"
#include "support/error.h"
#include "support/utf8.h"

namespace pytracer {

namespace {

constexpr ptrdiff_t kMostReferences = 16;
constexpr size_t kNumberBytes = 2;  // before a name, once or twice

uint16_t number_at(const std::string& row, size_t place) noexcept {
  uint16_t number = 0;
  if (row.size() >= place + sizeof(number)) std::memcpy(&number, row.data() + place, sizeof(number));
  return number;
}

std::string name_after(const std::string& row, size_t place) { return row.substr(std::min(row.size(), place)); }

size_t restore_phases(const BoxReader& box) {
  Phases& phases = Phases::instance();
  for (const std::string& row : box.names(BoxKind::phases)) {
    while (phases.numbers() + 1 < number_at(row, 0)) phases.add(0, "");  // a row is damaged
    phases.add(number_at(row, kNumberBytes), name_after(row, 2 * kNumberBytes));
  }
  return phases.numbers();
}

size_t restore_node_types(const BoxReader& box) {
  static std::deque<std::string> mangled;  // whose addresses are the types
  size_t count = 0;
  for (const std::string& row : box.names(BoxKind::node_types)) {
    mangled.push_back(to_utf8(name_after(row, kNumberBytes)));
    // Each back reference of a mangled name may double its text.
    const std::string& name = mangled.back();
    if (std::count(name.begin(), name.end(), '_') > kMostReferences) mangled.back().clear();
    count = std::max<size_t>(count, NodeTypes::instance().number_of(mangled.back().c_str()));
  }
  return count;
}

std::shared_ptr<const WallClock::Pairs> restored_clock(const BoxReader& box, BoxKind kind, bool is_same_boot) {
  auto pairs = std::make_shared<WallClock::Pairs>(
      box.last<WallClock::Pair>(box.newest(kind), BoxNotes::kMostPairs));
  const auto is_older = [](const WallClock::Pair& a, const WallClock::Pair& b) { return a.ticks < b.ticks; };
  std::sort(pairs->begin(), pairs->end(), is_older);
  // The latest pair may be long before the end. Of a clock that is not this process's, it is not known.
  const WallClock::Pair now = WallClock(&now_ticks).pair();
  if (is_same_boot && (pairs->empty() || pairs->back().ticks < now.ticks)) pairs->push_back(now);
  while (pairs->size() < 2) pairs->push_back(pairs->empty() ? now : pairs->back());
  return pairs;
}

std::vector<LiveBlock> live_blocks(const BoxReader& box, BoxKind kind, int device) {
  const BoxReader::Array* const array = box.newest(kind, device);
  std::vector<LiveBlock> blocks = box.items<LiveBlock>(array, 1, array != nullptr ? array->count + 1 : 0);
  const auto is_gone = [](const LiveBlock& block) { return block.state != LiveTable::kLive; };
  blocks.erase(std::remove_if(blocks.begin(), blocks.end(), is_gone), blocks.end());
  return blocks;
}

// The latest events of a ring without a gap, up to `head`, and the sequence of the first.
std::pair<uint64_t, std::vector<Event>> latest_events(const BoxReader& box, const BoxReader::Array& array,
                                                      uint64_t head) {
  const uint64_t capacity = std::max<uint64_t>(array.number, 1);
  const std::vector<Event> events = box.items<Event>(&array, 0, capacity);
  // The event that follows may be half written in the place of the oldest one.
  const uint64_t last = std::max(box.count_now(array), head);  // what came while the events were read
  uint64_t first = std::max(array.first, last >= capacity ? last - capacity + 1 : 0);
  first = std::min(first, head);
  std::vector<Event> held;
  if (head - first > events.size()) first = head - events.size();  // the others are not in the file
  for (uint64_t sequence = first; sequence < head; ++sequence) {
    const uint64_t place = (sequence - array.first) % capacity;
    const Event event = place < events.size() ? events[place] : Event{};
    if (event.ticks == 0 || event.action > kFreeAtOnce || event.device != array.device) {  // not in the file
      held.clear();
      first = sequence + 1;
      continue;
    }
    held.push_back(event);
  }
  return {first, std::move(held)};
}

uint64_t peak(const std::vector<Event>& events, uint64_t allocated_at_end) {
  uint64_t allocated = allocated_at_end, peak = allocated;
  for (auto event = events.rbegin(); event != events.rend(); ++event) {  // undone one by one
    if (event->action == PYTRACER_ALLOC) {
      allocated -= std::min(allocated, event->size());
    } else if (event->action == PYTRACER_FREE_COMPLETED || event->action == kFreeAtOnce) {
      allocated += event->size();
    }
    peak = std::max(peak, allocated);
  }
  return peak;
}

class Restored {
 public:
  Restored(const BoxReader& box, const RestoreOptions& options)
      : box_(box), view_{options.stack_depth, options.context, options.forward_stacks} {
    if (Phases::instance().numbers() != 0) throw Error("a box is read in a process of its own");
    const size_t node_types = restore_node_types(box);
    phases_ = restore_phases(box);
    view_.stacks = restored_stacks(box, node_types, phases_);
    view_.phases.complete = false;
    view_.clock = restored_clock(box, BoxKind::clock, options.is_same_boot);
    const BoxReader::Array* const other = box.newest(BoxKind::accelerator_clock);
    const bool has_other = other != nullptr && other->count != 0;
    accelerator_clock_ =
        has_other ? restored_clock(box, BoxKind::accelerator_clock, options.is_same_boot) : view_.clock;
    view_.begin = view_.end = view_.clock->front().ticks;
    restore_devices();
    restore_steps();
  }
  View view() { return std::move(view_); }

 private:
  void restore_devices() {
    const auto state = std::make_shared<AllocatorState>();
    std::set<int> devices;
    for (const BoxReader::Array& array : box_.arrays()) {
      const bool is_device = array.device >= PYTRACER_CPU_DEVICE && array.device <= PYTRACER_HOST_DEVICE;
      const bool is_ring = array.kind == BoxKind::ring && &array == box_.newest(BoxKind::ring, array.device);
      if (is_ring && is_device) devices.insert(array.device);
    }
    for (const int device : devices) {
      DeviceView view = restored_device(device);
      if (!view.is_cpu()) state->add(restored_segments(view));
      view_.devices.push_back(std::move(view));
    }
    view_.state = state;
  }

  DeviceView restored_device(int device) {
    DeviceView view{device, 0, 0, {}, device >= 0 && device != PYTRACER_HOST_DEVICE ? accelerator_clock_ : view_.clock,
                    {}, {}, {}};
    DeviceLog::Capture& capture = view.capture;
    auto names = std::make_shared<DeviceNames>();
    pools_ = names->restore(box_.names(BoxKind::pools, device), box_.names(BoxKind::labels, device),
                            box_.names(BoxKind::texts, device));
    capture.names = names;
    capture.blocks = live(device, BoxKind::blocks);
    capture.segments = live(device, BoxKind::segments);
    restore_ring(view);
    capture.used = capture.end != 0 || !capture.blocks.empty();
    restore_uses(view);
    return view;
  }

  void restore_ring(DeviceView& view) {
    const BoxReader::Array* const array = box_.newest(BoxKind::ring, view.device);
    auto [first, held] = latest_events(box_, *array, array->count);
    for (Event& event : held) {
      event.stack = known(event.stack);
      event.alloc_stack = known(event.alloc_stack);
      if (event.phase > phases_) event.phase = 0;
      if (event.pool > pools_.first) event.pool = 0;
      if (event.metadata > pools_.second) event.metadata = 0;
      view_.begin = std::min(view_.begin, event.ticks);  // the first of many clock pairs may be gone
      view_.end = std::max(view_.end, event.ticks);
    }
    const auto size = static_cast<uint32_t>(std::max<size_t>(held.size(), 1));
    // Events are numbered from the process's first one on, and this ring may be a later one.
    view.begin = 0;
    view.first = first;
    view.capture.end = array->count;
    view.capture.ring = std::make_shared<RingBuffer>(size, first, held);
  }

  void restore_uses(DeviceView& view) {
    const auto is_role = [](const TensorUse& use) { return use.role < kTensorRoles; };
    for (const TensorUse& use : box_.last<TensorUse>(box_.newest(BoxKind::uses, view.device), TensorUses::kMost)) {
      if (is_role(use) && use.sequence >= view.first) view.uses.push_back(use);
    }
    const auto is_earlier = [](const TensorUse& a, const TensorUse& b) { return a.sequence < b.sequence; };
    std::stable_sort(view.uses.begin(), view.uses.end(), is_earlier);
    for (const LiveBlock& block : view.capture.blocks) {  // as if it were freed now
      if (block.role == 0) continue;
      view.uses.push_back({view.capture.end, block.address & (~uint64_t{0} >> 8), block.role});
    }
  }

  std::vector<LiveBlock> live(int device, BoxKind kind) {
    std::vector<LiveBlock> blocks = live_blocks(box_, kind, device);
    const auto is_below = [](const LiveBlock& a, const LiveBlock& b) { return a.address < b.address; };
    std::stable_sort(blocks.begin(), blocks.end(), is_below);
    const auto is_same = [](const LiveBlock& a, const LiveBlock& b) { return a.address == b.address; };
    blocks.erase(std::unique(blocks.begin(), blocks.end(), is_same), blocks.end());
    for (LiveBlock& block : blocks) {
      block.stack = known(block.stack);
      if (block.role >= kTensorRoles) block.role = 0;
    }
    return blocks;
  }

  uint32_t known(uint32_t stack) const { return stack != 0 && view_.stacks->generation_of(stack) ? stack : 0; }

  void restore_steps() {
    for (const BoxStep& step : box_.last<BoxStep>(box_.newest(BoxKind::steps), BoxNotes::kMostSteps)) {
      for (DeviceView& device : view_.devices) {
        if (device.device != step.device) continue;
        if (!device.steps.empty() && device.steps.back().begin > step.begin) continue;
        device.steps.push_back({step.number, step.begin});
        device.births.push_back({step.epoch, step.number});
      }
      if (view_.steps.empty() || view_.steps.back().number != step.number) {
        view_.steps.push_back({step.number, step.ticks});
        view_.end = std::max(view_.end, step.ticks);
      }
    }
  }

  const BoxReader& box_;
  View view_;
  std::shared_ptr<const WallClock::Pairs> accelerator_clock_;
  size_t phases_ = 0;
  std::pair<size_t, size_t> pools_;  // how many pools and labels a device has
};

}  // namespace

std::string description_of(const BoxReader& box) {
  const BoxReader::Array* const array = box.newest(BoxKind::description);
  if (array == nullptr) return {};
  const uint64_t begin = (array->count & 1) * BoxNotes::kMaxDescription;
  const uint64_t size = std::min<uint64_t>(array->count >> 1, BoxNotes::kMaxDescription);
  const std::vector<char> text = box.items<char>(array, begin, begin + size);
  return {text.begin(), text.end()};
}

uint32_t last_step(const BoxReader& box) {
  const BoxReader::Array* const array = box.newest(BoxKind::steps);
  if (array == nullptr || array->count == 0) return 0;
  const uint64_t place = (array->count - 1) % BoxNotes::kMostSteps;
  const std::vector<BoxStep> last = box.items<BoxStep>(array, place, place + 1);
  return last.empty() ? 0 : last.front().number;
}

std::vector<DeviceNow> devices_now(const BoxReader& box) {
  std::vector<DeviceNow> devices;
  const auto bytes = [&](BoxKind kind, int device) {
    uint64_t sum = 0;
    for (const LiveBlock& block : live_blocks(box, kind, device)) sum += block.size;
    return sum;
  };
  for (const BoxReader::Array& array : box.arrays()) {
    if (array.kind != BoxKind::ring || &array != box.newest(BoxKind::ring, array.device)) continue;
    // Blocks and events have to be of one instant; of a busy process, they are not quite.
    constexpr int kTries = 8;
    uint64_t allocated = 0, head = box.count_now(array);
    for (int tries = 0; tries < kTries; ++tries) {
      const uint64_t before = head;
      allocated = bytes(BoxKind::blocks, array.device);
      head = box.count_now(array);
      if (head == before) break;
    }
    devices.push_back({array.device, head, allocated,
                       bytes(BoxKind::segments, array.device),
                       peak(latest_events(box, array, head).second, allocated)});
  }
  return devices;
}

View restored_view(const BoxReader& box, const RestoreOptions& options) {
  return Restored(box, options).view();
}

}  // namespace pytracer
