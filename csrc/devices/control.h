// The settings that a test controls and the counters that it reads: settings from the environment,
// values that change while the process runs, counters. simulated.py calls the extern "C" part
// through ctypes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simulated {

// Settings from the environment; the table in control.cpp has their variables, units and bounds.
struct Settings {
  int64_t capacity;  // bytes
  int64_t others;    // bytes that another process holds
  int64_t devices;
  int64_t pending_queries;  // at the start
  int64_t cuda_version;     // 13000 means 13.0
  int64_t capability;       // 80 means 8.0
  int64_t multiprocessors;
  int64_t l2_bytes;
  int64_t shared_multiprocessor_bytes;
  int64_t shared_block_bytes;  // the most that a kernel may ask for
  int64_t multiprocessor_threads;
  int64_t busy;  // at the start
  int64_t backed;
  int64_t verbose;
  char name[96];  // empty: the backend's own
};
// Read at the first use. A wrong value ends the process with a message.
const Settings& settings();

constexpr int kMaxDevices = 64;

// The devices that `variable` (CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES) makes visible to
// this process, in its order; a driver numbers visible devices from 0.
std::vector<int> visible_devices(const char* variable);

// The counted driver calls; simulated.py's counter() takes the names in control.cpp. The last one
// counts workspaces of unknown size, for which a program got none.
enum class Counter {
  malloc,
  free,
  create,
  release,
  map,
  unmap,
  launch,
  memcpy,
  memset,
  stub,
  unknown_workspaces
};
void count(Counter counter) noexcept;
uint64_t counted(Counter counter) noexcept;

// Tells simulated.py's on_read() of a copy from a device whose values are unknown, which it may know.
void note_read(void* destination, const void* source, size_t bytes);

// A device is in use after the process selected it or allocated on it. A real driver then keeps a
// context on the device, which takes additional memory.
void mark_in_use(int device) noexcept;
bool in_use(int device) noexcept;

// Whether this process was forked from one that used a device. Drivers do not work in such a
// process.
bool in_forked_child() noexcept;

}  // namespace simulated

extern "C" {
// The body of the generated stubs, which pass their address: it counts the call, logs each name once
// with SIMULATED_VERBOSE, and reports success.
long simulated_stub(const void* stub);
// The body of stubs for work on the device.
long simulated_launch(const void* stub);
// The body of stubs whose first argument says where the address of a new object goes.
long simulated_create(void** object);
// The body of stubs that answer with a size, of a workspace in most cases, which is 0.
long simulated_unknown();

// The functions of simulated.py. Device -1 stands for all devices.
int simulated_devices();
void simulated_set_capacity(int device, size_t bytes);
size_t simulated_capacity(int device);
size_t simulated_used_bytes(int device);
size_t simulated_context_bytes(int device);
void simulated_set_busy(int busy);
void simulated_set_pending_queries(int queries);
// UINT64_MAX if no counter has this name.
uint64_t simulated_counter(const char* name);
// Is called with each copy from a device whose values are unknown; null: nothing is.
void simulated_set_on_read(void (*function)(void* destination, const void* source, size_t bytes));
}
