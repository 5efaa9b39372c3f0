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

InternTable::InternTable(uint32_t max_bytes) : bytes_(max_bytes) {}

uint16_t InternTable::intern(std::string_view bytes) noexcept {
  if (last_ != 0 && at(last_) == bytes) return last_;
  const uint32_t hash = hash_of(bytes);
  uint32_t number = index_.find(hash, [&](uint32_t entry) {
    return entries_.all[entry].hash == hash && at(static_cast<uint16_t>(entry)) == bytes;
  });
  if (number == 0) {
    if (used_ == kMaxEntries || bytes.size() > bytes_.capacity() - used_bytes_) {
      dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      return 0;
    }
    number = ++used_;
    const auto size = static_cast<uint32_t>(bytes.size());
    std::memcpy(&bytes_[used_bytes_], bytes.data(), size);
    entries_.all[number] = {hash, 0, used_bytes_, size};
    used_bytes_ += size;
    index_.insert(number);
  }
  return last_ = static_cast<uint16_t>(number);
}

}  // namespace pytracer
