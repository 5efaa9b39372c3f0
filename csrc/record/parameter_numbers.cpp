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
  const uint32_t known = places_.find(mix(address), [&](uint32_t number) {
    return places_[number].address == address && places_[number].device == device;
  });
  return known != 0 || places_.is_full() ? known : places_.add({address, device, 0});
}

uint32_t ParameterNumbers::count() const noexcept {
  std::lock_guard lock(lock_);
  return places_.count();
}

// Another thread may have been in number_of().
void ParameterNumbers::reset_after_fork() noexcept {
  places_.clear();
  lock_.unlock();
}

}  // namespace pytracer
