#include "snapshot/parameter_names.h"

#include <algorithm>

#include "record/node_types.h"

namespace pytracer {

constexpr uint64_t kNever = UINT64_MAX;

ParameterNames::ParameterNames(const View& view) : view_(view), stacks_(view.stacks) {
  if (!view.forward_stacks || !view.owners || !view.stacks) return;
  find_places();
  if (places_.empty()) return;
  for (const DeviceView& device : view.devices) find_since(device);
}

void ParameterNames::find_places() {
  const ParameterNumbers* const known = ParameterNumbers::instance();
  if (known == nullptr) return;
  const uint32_t count = known->count();
  std::vector<std::pair<Place, uint32_t>> found;
  for (const DeviceView& device : view_.devices) {
    const std::vector<LiveBlock>& blocks = device.capture.blocks;
    for (uint32_t number = 1; number <= count; ++number) {
      const auto& [address, owner_device, next] = known->place(number);
      if (owner_device != device.device) continue;
      const Owner* owner = view_.owners->parameter_at(address, owner_device);
      if (owner == nullptr) continue;
      auto block = std::upper_bound(
          blocks.begin(), blocks.end(), address,
          [](uint64_t wanted, const LiveBlock& each) { return wanted < each.address; });
      const bool is_live = block != blocks.begin() && address - (--block)->address < block->size;
      if (!view_.owners->was_live(is_live ? &*block : nullptr, device.capture, device.device)) continue;
      // The CPU's blocks that the live table lacks are freed without an event.
      if (!is_live && device.is_cpu()) continue;
      const uint32_t epoch = is_live ? block->epoch : 0;
      found.push_back({{device.device, address, &owner->name, 0, epoch, is_live}, number});
    }
  }
  const auto key = [](const Place& place) { return std::pair(place.device, place.address); };
  std::sort(found.begin(), found.end(),
            [&](const auto& a, const auto& b) { return key(a.first) < key(b.first); });
  for (const auto& [place, number] : found) {
    places_.push_back(place);
    numbers_.emplace(number, static_cast<uint32_t>(places_.size()));
  }
}

// An allocation over a parameter's place is that of its block, or of an earlier block.
void ParameterNames::find_since(const DeviceView& device) {
  any_event(device, [&](const Event& event, uint64_t at) {
    const bool is_allocation = event.action == PYTRACER_ALLOC;
    if (is_allocation && parameter(event.stack) != 0) allocated_[{device.device, event.address}] = at;
    if (!is_allocation && !is_free(event)) return false;
    auto place = std::lower_bound(
        places_.begin(), places_.end(), std::pair(device.device, event.address),
        [](const Place& each, const std::pair<int, uint64_t>& wanted) {
          return std::pair(each.device, each.address) < wanted;
        });
    for (; place != places_.end() && place->device == device.device && place->address - event.address < event.size();
         ++place) {
      // A block that the live table lacks is older than the recording, and cannot be freed in it.
      place->since = place->is_live ? (is_allocation ? at + 1 : place->since) : kNever;
    }
    return false;
  });
}

const ParameterNames::Place* ParameterNames::place(uint32_t stack, int device) const {
  const uint32_t number = parameter(stack);
  const auto found = number != 0 ? numbers_.find(number) : numbers_.end();
  if (found == numbers_.end()) return nullptr;
  const Place& place = places_[found->second - 1];
  return place.device == device && place.since != kNever ? &place : nullptr;
}

const std::string* ParameterNames::at_event(uint32_t stack, int device, uint64_t sequence) const {
  const Place* const found = place(stack, device);
  return found != nullptr && sequence >= found->since ? found->name : nullptr;
}

const std::string* ParameterNames::of_block(const LiveBlock& block, int device) const {
  const Place* const found = place(block.stack, device);
  if (found == nullptr) return nullptr;
  const auto event = allocated_.find({device, block.address});
  if (event != allocated_.end()) return event->second >= found->since ? found->name : nullptr;
  // Its event has left the ring.
  const bool is_later = found->since == 0 && (!found->is_live || block.epoch > found->epoch);
  return is_later ? found->name : nullptr;
}

}  // namespace pytracer
