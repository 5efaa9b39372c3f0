#include "view/owners.h"

#include <algorithm>
#include <utility>

namespace pytracer {

const char* const kCategoryNames[kCategories] = {
    "unknown",         "parameter", "buffer",    "gradient",
    "optimizer_state", "mixed",     "workspace", "activation"};
const char* const kRuleNames[kRules] = {"no_owner", "too_new", "module", "optimizer",
                                        "grad",     "several", "cublas", "saved_by_node"};

Owners::Owners(std::vector<DeviceLog::Mark> marks, std::vector<Owner> owners, Missing missing)
    : marks_(std::move(marks)), owners_(std::move(owners)), missing_(missing) {
  std::stable_sort(owners_.begin(), owners_.end(), [](const Owner& a, const Owner& b) {
    return std::pair(a.device, a.address) < std::pair(b.device, b.address);
  });
}

Owners::Found Owners::find(uint64_t address, uint64_t size, const LiveBlock* live,
                           const DeviceLog::Capture& capture, int device) const {
  if (!was_live(live, capture, device)) return {Category::unknown, Rule::too_new};
  Found found;
  auto owner = std::lower_bound(owners_.begin(), owners_.end(), std::pair(device, address),
                                [](const Owner& each, const std::pair<int, uint64_t>& wanted) {
                                  return std::pair(each.device, each.address) < wanted;
                                });
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
  return found;
}

const Owner* Owners::parameter_at(uint64_t address, int device) const {
  const auto first = std::partition_point(owners_.begin(), owners_.end(), [&](const Owner& each) {
    return std::pair(each.device, each.address) < std::pair(device, address);
  });
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
