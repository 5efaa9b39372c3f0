// What a test sets and reads: settings from the environment, knobs that change while the process
// runs, counters. simulated.py reaches the extern "C" part through ctypes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simulated {

// From the environment, read once at first use; README.md says what each one means.
struct Settings {
  size_t capacity;      // SIMULATED_CAPACITY_MB, in bytes
  int devices;          // SIMULATED_DEVICES
  int pending_queries;  // SIMULATED_PENDING_QUERIES, at the start
  int capability;       // SIMULATED_COMPUTE_CAPABILITY, 80 means 8.0
  bool busy;            // SIMULATED_BUSY, at the start
  bool backed;          // SIMULATED_BACKED
  bool verbose;         // SIMULATED_VERBOSE
};
const Settings& settings();

constexpr int kMaxDevices = 64;

// The devices that `variable` (CUDA_VISIBLE_DEVICES or ASCEND_RT_VISIBLE_DEVICES) leaves to this
// process, in its order; a driver numbers what it shows from 0.
std::vector<int> visible_devices(const char* variable);

// What a driver was asked to do; simulated.py's counter() takes the names in control.cpp.
enum class Counter { malloc, free, create, release, map, unmap, launch, memcpy, memset, stub };
void count(Counter counter) noexcept;

// A device is in use once the process selected it or allocated there: a real driver then keeps a
// context on it, which takes memory of its own.
void mark_in_use(int device) noexcept;
bool in_use(int device) noexcept;

// Whether this process was forked from one that used a device. No driver works there.
bool in_forked_child() noexcept;

}  // namespace simulated

extern "C" {
// The body of the generated stubs: counted, logged once a name with SIMULATED_VERBOSE, successful.
long simulated_stub(const char* name);
// The same for those that would start work on the device.
long simulated_launch(const char* name);

// The knobs of simulated.py. A device of -1 means every device.
int simulated_devices();
void simulated_set_capacity(int device, size_t bytes);
size_t simulated_capacity(int device);
size_t simulated_used_bytes(int device);
size_t simulated_context_bytes(int device);
void simulated_set_busy(int busy);
void simulated_set_pending_queries(int queries);
// UINT64_MAX: no counter has this name.
uint64_t simulated_counter(const char* name);
}
