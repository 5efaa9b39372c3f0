#include "record/parameter_numbers.h"

#include <atomic>
#include <mutex>

namespace pytracer {

namespace {
std::atomic<ParameterNumbers*> g_numbers{nullptr};
}  // namespace

void ParameterNumbers::make() {
  static ParameterNumbers* const numbers = new ParameterNumbers;
  g_numbers.store(numbers, std::memory_order_release);
}

ParameterNumbers* ParameterNumbers::instance() noexcept {
  return g_numbers.load(std::memory_order_acquire);
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

// Another thread may have been in number_of().
void ParameterNumbers::reset_after_fork() noexcept {
  index_.clear();
  count_ = 0;
  lock_.unlock();
}

}  // namespace pytracer
