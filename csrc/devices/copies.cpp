// Copies and fills, and what can be read back.
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "addresses.h"
#include "control.h"
#include "memory.h"

namespace simulated {
namespace {

using Pieces = std::map<uintptr_t, std::string>;  // they do not overlap

// What was last copied to the devices in small pieces. It can be read back until the next launch,
// which could overwrite it: programs exchange shapes, counts and seeds in this way.
struct Known {
  static constexpr size_t kMostBytes = 64 << 10;
  static constexpr size_t kMostPieces = 4096;

  std::mutex mutex;
  Pieces pieces;
  uint64_t launches = 0;

  bool recall(uintptr_t start, size_t bytes, std::string* content) {
    forget_after_launch();
    while (content->size() < bytes) {
      const uintptr_t at = start + content->size();
      const auto piece = entry_around(pieces, at, [](const std::string& each) {
        return each.size();
      });
      if (piece == pieces.end()) return false;
      content->append(piece->second, at - piece->first, bytes - content->size());
    }
    return true;
  }

  void forget(uintptr_t start, size_t bytes) {
    forget_after_launch();
    const uintptr_t end = start + bytes;
    auto piece = pieces.upper_bound(start);
    if (piece != pieces.begin()) --piece;
    while (piece != pieces.end() && piece->first < end) {
      const auto [from, content] = *piece;
      if (from + content.size() <= start) {
        ++piece;
        continue;
      }
      piece = pieces.erase(piece);
      if (from < start) pieces[from] = content.substr(0, start - from);
      if (from + content.size() > end) pieces[end] = content.substr(end - from);
    }
  }

  void remember(uintptr_t start, std::string content) {
    if (pieces.size() >= kMostPieces) pieces.clear();
    if (!content.empty()) pieces[start] = std::move(content);
  }

 private:
  void forget_after_launch() {
    const uint64_t now = counted(Counter::launch);
    if (now != launches) pieces.clear();
    launches = now;
  }
};

Known& known() {
  static auto* only = new Known;
  return *only;
}

uintptr_t place_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

void copy(void* destination, const void* source, size_t bytes) {
  count(Counter::memcpy);
  const bool to_device = is_device_address(destination);
  const bool from_device = is_device_address(source);
  if (settings().backed || (!to_device && !from_device)) {
    std::memmove(destination, source, bytes);
    return;
  }
  std::string content;
  bool is_known = bytes <= Known::kMostBytes;
  {
    Known& all = known();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (is_known && from_device) is_known = all.recall(place_of(source), bytes, &content);
    if (is_known && !from_device) content.assign(static_cast<const char*>(source), bytes);
    if (to_device) {
      all.forget(place_of(destination), bytes);
      if (is_known) all.remember(place_of(destination), std::move(content));
      return;
    }
  }
  if (is_known) {
    std::memcpy(destination, content.data(), bytes);
  } else {
    std::memset(destination, 0, bytes);
    note_read(destination, source, bytes);
  }
}

void fill(void* destination, int value, size_t bytes) noexcept {
  count(Counter::memset);
  if (settings().backed || !is_device_address(destination)) {
    std::memset(destination, value, bytes);
    return;
  }
  Known& all = known();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.forget(place_of(destination), bytes);
  if (bytes <= Known::kMostBytes) {
    all.remember(place_of(destination), std::string(bytes, static_cast<char>(value)));
  }
}

void lock_copies() { known().mutex.lock(); }
void unlock_copies() { known().mutex.unlock(); }

}  // namespace simulated
