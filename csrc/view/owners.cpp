#include "view/owners.h"

#include <algorithm>
#include <utility>

namespace pytracer {

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
  found.holder = holder_in(address, size, device);
  const bool is_owned = found.category != Category::unknown && found.category != Category::activation;
  if (is_owned && found.holder == &unheld_) found.holder = nullptr;
  return found;
}

const std::string* Owners::holder_in(uint64_t address, uint64_t size, int device) const {
  const auto holder = first_from(holders_, address, device);
  const bool is_in = holder != holders_.end() && holder->device == device &&
                     holder->address - address < size;
  const std::string& text = is_in ? holder->text : unheld_;
  return text.empty() ? nullptr : &text;
}

const Owner* Owners::parameter_at(uint64_t address, int device) const {
  const auto first = first_from(owners_, address, device);
  const Owner* found = nullptr;
  for (auto owner = first; owner != owners_.end() && owner->device == device &&
                           owner->address == address; ++owner) {
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
