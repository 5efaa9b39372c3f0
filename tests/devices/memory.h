// The memory of the simulated devices: how much each one has and how much of it is taken, and one
// window of addresses for all of them. Both backends' drivers are thin layers over this.
//
// 1. Any thread, at any time. One mutex: the caching allocators above come here only when they
//    take memory from a device or give it back.
// 2. Nothing is committed: the window is reserved address space that cannot even be read, unless
//    SIMULATED_BACKED is set. Copies skip what cannot be accessed.
// 3. Addresses are given out lowest first, so that a program that runs twice gets the same ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulated {

// What both drivers round to, and the smallest piece that can be mapped.
constexpr size_t kGranularity = size_t{2} << 20;
// What the driver itself takes on a device once it is used. Beside the capacity, not out of it:
// all of a device's capacity is there for the program.
constexpr size_t kContextBytes = size_t{300} << 20;

enum class Outcome { done, out_of_memory, invalid };

// Lowering a device's capacity below what is taken makes further requests fail, nothing else.
void set_capacity(int device, size_t bytes);
size_t capacity(int device);
size_t used_bytes(int device);
size_t free_bytes(int device);

// Memory with an address of its own: cudaMalloc, aclrtMalloc.
Outcome allocate(int device, size_t bytes, void** address);
Outcome deallocate(void* address);

// Addresses without memory, and chunks of memory without an address, to be mapped: what expandable
// segments are made of. A chunk's memory is taken until it is neither held nor mapped.
Outcome reserve(size_t bytes, void** address);
Outcome unreserve(void* address);
Outcome create_chunk(int device, size_t bytes, uint64_t* chunk);
Outcome hold_chunk_at(const void* address, uint64_t* chunk);
Outcome release_chunk(uint64_t chunk);
Outcome map(void* address, size_t bytes, uint64_t chunk);
Outcome unmap(void* address, size_t bytes);
// Of the one chunk mapped at this address.
Outcome unmap(void* address);

struct Block {
  void* address;
  size_t bytes;
  int device;
};
// The allocation or the mapped chunk that this address lies in, or false.
bool find_block(const void* address, Block* found);

// Whether the address lies in the window. Takes no lock.
bool is_device_address(const void* address) noexcept;

// Between host and devices, in any direction. What is read from a device that has no backing is 0.
void copy(void* destination, const void* source, size_t bytes) noexcept;
void fill(void* destination, int value, size_t bytes) noexcept;

// Memory of the host that a driver handed out or was told of ("pinned").
void register_host(const void* address, size_t bytes);
void unregister_host(const void* address);
bool is_registered_host(const void* address);

// Around fork().
void lock_memory();
void unlock_memory();

}  // namespace simulated
