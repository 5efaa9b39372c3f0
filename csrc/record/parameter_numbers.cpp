#include "record/parameter_numbers.h"

#include <mutex>
#include <new>

namespace pytracer {

ParameterNumbers& ParameterNumbers::instance() noexcept {
  static ParameterNumbers* const numbers = new ParameterNumbers;
  return *numbers;
}

uint32_t ParameterNumbers::number_of(uint64_t address, int32_t device) noexcept {
  std::lock_guard lock(lock_);
  const uint32_t known = index_.find(hash_of(address), [&](uint32_t item) {
    return places_[item].address == address && places_[item].device == device;
  });
  if (known != 0 || count_ == kMost) return known;
  places_[++count_] = {address, device, 0};
  index_.insert(count_);
  return count_;
}

uint32_t ParameterNumbers::count() const noexcept {
  std::lock_guard lock(lock_);
  return count_;
}

// The pages are leaked: another thread may have been in number_of().
void ParameterNumbers::reset_after_fork() noexcept { new (this) ParameterNumbers; }

}  // namespace pytracer
