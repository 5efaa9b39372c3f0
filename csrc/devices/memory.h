// The memory of the simulated devices: their capacities, the memory in use, and one window of
// addresses for all devices. The drivers of both backends are thin layers over this model.
//
// 1. Any thread may call any function at any time. There is one mutex, because the caching
//    allocators call the model only when they take memory from a device or return it.
// 2. No host memory is committed: the window is reserved address space without access rights,
//    unless SIMULATED_BACKED is set. Copies skip addresses that cannot be accessed.
// 3. The lowest addresses are given out first, so that a program gets the same addresses each time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulated {

// The unit to which both drivers round, and the smallest piece that can be mapped.
constexpr size_t kGranularity = size_t{2} << 20;
// The memory of the driver's own context on a device in use. It is not part of the capacity, so
// that the program can use the entire capacity.
constexpr size_t kContextBytes = size_t{300} << 20;

enum class Outcome { done, out_of_memory, invalid };

// A capacity below the memory in use makes further requests fail, and has no other effect.
void set_capacity(int device, size_t bytes);
size_t capacity(int device);
size_t used_bytes(int device);
size_t free_bytes(int device);

// Memory with an address, as by cudaMalloc and aclrtMalloc.
Outcome allocate(int device, size_t bytes, void** address);
Outcome deallocate(void* address);

// Addresses without memory, and chunks of memory without an address, which can be mapped: the parts
// of expandable segments. A chunk's memory is in use while the chunk is held or mapped.
Outcome reserve(size_t bytes, void** address);
Outcome unreserve(void* address);
Outcome create_chunk(int device, size_t bytes, uint64_t* chunk);
Outcome hold_chunk_at(const void* address, uint64_t* chunk);
Outcome release_chunk(uint64_t chunk);
Outcome map(void* address, size_t bytes, uint64_t chunk);
Outcome unmap(void* address, size_t bytes);
// Unmaps the one chunk that is mapped at this address.
Outcome unmap(void* address);

struct Block {
  void* address;
  size_t bytes;
  int device;
};
// Finds the allocation or the mapped chunk that contains this address, or returns false.
bool find_block(const void* address, Block* found);

// Whether the window contains the address. Takes no lock.
bool is_device_address(const void* address) noexcept;

// Copies between host and devices, in any direction. Device memory without backing reads as 0, or
// as the small piece that was last copied there if no work was launched since.
void copy(void* destination, const void* source, size_t bytes);
void fill(void* destination, int value, size_t bytes) noexcept;

// Host memory that a driver allocated or registered ("pinned").
void register_host(const void* address, size_t bytes);
void unregister_host(const void* address);
bool is_registered_host(const void* address);

// Called before and after fork().
void lock_memory();
void unlock_memory();
void lock_copies();
void unlock_copies();

}  // namespace simulated
