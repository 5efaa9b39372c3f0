#include "support/intern_table.h"

#include <cstring>

namespace pytracer {

namespace {

uint32_t hash_of(std::string_view bytes) noexcept {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

}  // namespace

uint32_t InternTable::find(std::string_view bytes) const noexcept {
  const uint32_t hash = hash_of(bytes);
  return strings_.find(hash, [&](uint32_t number) {
    return strings_[number].hash_of == hash && at(number) == bytes;
  });
}

uint32_t InternTable::intern(std::string_view bytes) noexcept {
  if (bytes.empty()) return 0;
  if (last_ != 0 && at(last_) == bytes) return last_;
  if (const uint32_t known = find(bytes)) return last_ = known;
  const auto used = static_cast<uint32_t>(bytes_.count()), size = static_cast<uint32_t>(bytes.size());
  if (strings_.is_full() || bytes.size() > bytes_.capacity() - used || bytes_.back(used + size) < used + size) {
    dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return 0;
  }
  std::memcpy(&bytes_[used], bytes.data(), size);
  bytes_.set_count(used + size);
  return last_ = strings_.add({hash_of(bytes), 0, used, size});
}

}  // namespace pytracer
