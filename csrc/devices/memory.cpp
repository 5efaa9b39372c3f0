#include "memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <unordered_map>

#include "addresses.h"
#include "control.h"

namespace simulated {
namespace {

// An address far from the kernel's own mappings. Each expandable segment reserves more than a
// device's capacity, hence the size. Where so much address space cannot be reserved (ulimit -v,
// thread sanitizer), the window is smaller.
constexpr uintptr_t kPreferredStart = uintptr_t{0x200000000000};
constexpr size_t kMostBytes = size_t{16} << 40;
constexpr size_t kLeastBytes = size_t{64} << 30;

struct Window {
  uintptr_t start;
  size_t bytes;
};

size_t round_up(size_t bytes) {
  const size_t at_least_one = bytes == 0 ? 1 : bytes;
  return (at_least_one + kGranularity - 1) / kGranularity * kGranularity;
}

uintptr_t number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

Window make_window() {
  const int access = settings().backed ? PROT_READ | PROT_WRITE : PROT_NONE;
  for (size_t bytes = kMostBytes; bytes >= kLeastBytes; bytes /= 2) {
    void* start = mmap(reinterpret_cast<void*>(kPreferredStart), bytes, access,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) continue;
    madvise(start, bytes, MADV_DONTDUMP);
    return {number(start), bytes};
  }
  std::perror("simulated: no addresses for the devices");
  std::abort();
}

const Window& window() {
  static const Window only = make_window();
  return only;
}

struct Device {
  size_t capacity = static_cast<size_t>(settings().capacity);
  size_t others = static_cast<size_t>(settings().others);
  size_t used = 0;

  size_t free() const { return capacity > used + others ? capacity - used - others : 0; }
};

struct Chunk {
  size_t bytes;
  int device;
  int references;  // one for the holder, and one for each mapping
};

struct Mapping {
  size_t bytes;
  uint64_t chunk;
};

struct Allocation {
  size_t bytes;
  int device;
};

// The state that the mutex guards.
struct Model {
  std::mutex mutex;
  Device devices[kMaxDevices];
  Addresses addresses{window().start, window().bytes};
  std::map<uintptr_t, Allocation> allocations;
  std::map<uintptr_t, Mapping> mappings;
  std::unordered_map<uintptr_t, size_t> reservations;
  std::unordered_map<uint64_t, Chunk> chunks;
  std::map<uintptr_t, size_t> host;
  uint64_t next_chunk = 1;

  bool take(int device, size_t bytes) {
    Device& of = devices[device];
    if (bytes > of.free()) return false;
    of.used += bytes;
    return true;
  }

  Outcome drop_reference(uint64_t chunk) {
    const auto found = chunks.find(chunk);
    if (found == chunks.end()) return Outcome::invalid;
    if (--found->second.references == 0) {
      devices[found->second.device].used -= found->second.bytes;
      chunks.erase(found);
    }
    return Outcome::done;
  }

  void discard_content(uintptr_t start, size_t bytes) {
    if (settings().backed) madvise(reinterpret_cast<void*>(start), bytes, MADV_DONTNEED);
  }
};

// Never destroyed, because the allocators above free their last blocks while the process exits.
Model& model() {
  static auto* only = new Model;
  return *only;
}

using Lock = std::lock_guard<std::mutex>;

}  // namespace

void set_capacity(int device, size_t bytes) {
  Lock lock(model().mutex);
  model().devices[device].capacity = bytes;
}

size_t capacity(int device) {
  Lock lock(model().mutex);
  return model().devices[device].capacity;
}

size_t used_bytes(int device) {
  Lock lock(model().mutex);
  return model().devices[device].used;
}

size_t free_bytes(int device) {
  Lock lock(model().mutex);
  return model().devices[device].free();
}

Outcome allocate(int device, size_t bytes, void** address) {
  count(Counter::malloc);
  mark_in_use(device);
  const size_t taken = round_up(bytes);
  Model& all = model();
  Lock lock(all.mutex);
  if (!all.take(device, taken)) return Outcome::out_of_memory;
  uintptr_t start = 0;
  if (!all.addresses.take(taken, &start)) {
    all.devices[device].used -= taken;
    return Outcome::out_of_memory;
  }
  all.allocations[start] = {taken, device};
  *address = reinterpret_cast<void*>(start);
  return Outcome::done;
}

Outcome deallocate(void* address) {
  count(Counter::free);
  Model& all = model();
  Lock lock(all.mutex);
  const auto found = all.allocations.find(number(address));
  if (found == all.allocations.end()) return Outcome::invalid;
  const auto [start, allocation] = *found;
  all.devices[allocation.device].used -= allocation.bytes;
  all.discard_content(start, allocation.bytes);
  all.addresses.give_back(start, allocation.bytes);
  all.allocations.erase(found);
  return Outcome::done;
}

Outcome reserve(size_t bytes, void** address) {
  const size_t taken = round_up(bytes);
  Model& all = model();
  Lock lock(all.mutex);
  uintptr_t start = 0;
  if (!all.addresses.take(taken, &start)) return Outcome::out_of_memory;
  all.reservations[start] = taken;
  *address = reinterpret_cast<void*>(start);
  return Outcome::done;
}

Outcome unreserve(void* address) {
  Model& all = model();
  Lock lock(all.mutex);
  const auto found = all.reservations.find(number(address));
  if (found == all.reservations.end()) return Outcome::invalid;
  all.addresses.give_back(found->first, found->second);
  all.reservations.erase(found);
  return Outcome::done;
}

Outcome create_chunk(int device, size_t bytes, uint64_t* chunk) {
  count(Counter::create);
  mark_in_use(device);
  Model& all = model();
  Lock lock(all.mutex);
  if (!all.take(device, bytes)) return Outcome::out_of_memory;
  *chunk = all.next_chunk++;
  all.chunks[*chunk] = {bytes, device, 1};
  return Outcome::done;
}

Outcome hold_chunk_at(const void* address, uint64_t* chunk) {
  Model& all = model();
  Lock lock(all.mutex);
  const auto found = entry_around(all.mappings, number(address),
                                  [](const Mapping& mapping) { return mapping.bytes; });
  if (found == all.mappings.end()) return Outcome::invalid;
  *chunk = found->second.chunk;
  ++all.chunks.at(*chunk).references;
  return Outcome::done;
}

Outcome release_chunk(uint64_t chunk) {
  count(Counter::release);
  Lock lock(model().mutex);
  return model().drop_reference(chunk);
}

Outcome map(void* address, size_t bytes, uint64_t chunk) {
  count(Counter::map);
  Model& all = model();
  Lock lock(all.mutex);
  const auto found = all.chunks.find(chunk);
  if (found == all.chunks.end() || all.mappings.count(number(address)) != 0) {
    return Outcome::invalid;
  }
  ++found->second.references;
  all.mappings[number(address)] = {bytes, chunk};
  return Outcome::done;
}

Outcome unmap(void* address, size_t bytes) {
  count(Counter::unmap);
  Model& all = model();
  Lock lock(all.mutex);
  const uintptr_t start = number(address);
  auto mapping = all.mappings.find(start);
  if (mapping == all.mappings.end()) return Outcome::invalid;
  while (mapping != all.mappings.end() && mapping->first < start + bytes) {
    all.discard_content(mapping->first, mapping->second.bytes);
    all.drop_reference(mapping->second.chunk);
    mapping = all.mappings.erase(mapping);
  }
  return Outcome::done;
}

Outcome unmap(void* address) {
  // The size is less than any chunk's, so the loop ends after the first chunk.
  return unmap(address, 1);
}

bool find_block(const void* address, Block* found) {
  Model& all = model();
  Lock lock(all.mutex);
  const auto allocation = entry_around(all.allocations, number(address),
                                       [](const Allocation& each) { return each.bytes; });
  if (allocation != all.allocations.end()) {
    *found = {reinterpret_cast<void*>(allocation->first), allocation->second.bytes,
              allocation->second.device};
    return true;
  }
  const auto mapping = entry_around(all.mappings, number(address),
                                    [](const Mapping& each) { return each.bytes; });
  if (mapping == all.mappings.end()) return false;
  *found = {reinterpret_cast<void*>(mapping->first), mapping->second.bytes,
            all.chunks.at(mapping->second.chunk).device};
  return true;
}

bool is_device_address(const void* address) noexcept {
  return number(address) - window().start < window().bytes;
}

void register_host(const void* address, size_t bytes) {
  Lock lock(model().mutex);
  model().host[number(address)] = bytes;
}

void unregister_host(const void* address) {
  Lock lock(model().mutex);
  model().host.erase(number(address));
}

bool is_registered_host(const void* address) {
  Model& all = model();
  Lock lock(all.mutex);
  return entry_around(all.host, number(address), [](size_t bytes) { return bytes; }) !=
         all.host.end();
}

void lock_memory() { model().mutex.lock(); }
void unlock_memory() { model().mutex.unlock(); }

}  // namespace simulated
