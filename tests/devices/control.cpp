#include "control.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "memory.h"
#include "queues.h"

namespace simulated {
namespace {

// The names of Counter, in its order.
constexpr const char* kCounterNames[] = {"malloc", "free",   "create", "release", "map",
                                         "unmap",  "launch", "memcpy", "memset",  "stub"};
constexpr size_t kCounters = sizeof(kCounterNames) / sizeof(*kCounterNames);

std::atomic<uint64_t> counters[kCounters];
std::atomic<bool> devices_in_use[kMaxDevices];
std::atomic<bool> forked{false};

long from_environment(const char* name, long default_value) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtol(value, nullptr, 10) : default_value;
}

Settings read_settings() {
  Settings read{};
  read.capacity = static_cast<size_t>(from_environment("SIMULATED_CAPACITY_MB", 16384)) << 20;
  read.others = static_cast<size_t>(from_environment("SIMULATED_OTHERS_MB", 0)) << 20;
  read.devices = std::clamp<int>(from_environment("SIMULATED_DEVICES", 2), 0, kMaxDevices);
  read.pending_queries = from_environment("SIMULATED_PENDING_QUERIES", 0);
  // With 9.0 torch would prefer cuDNN's attention, which has only stubs.
  read.capability = from_environment("SIMULATED_COMPUTE_CAPABILITY", 80);
  read.busy = from_environment("SIMULATED_BUSY", 0) != 0;
  read.backed = from_environment("SIMULATED_BACKED", 0) != 0;
  read.verbose = from_environment("SIMULATED_VERBOSE", 0) != 0;
  return read;
}

void log_once(const char* name) {
  static auto* mutex = new std::mutex;
  static auto* logged = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  if (logged->insert(name).second) std::fprintf(stderr, "simulated: %s\n", name);
}

void remember_fork() {
  const auto used = [](const std::atomic<bool>& device) { return device.load(); };
  if (std::any_of(std::begin(devices_in_use), std::end(devices_in_use), used)) forked = true;
}

// Registered when the library is loaded, before any thread can be inside the model: a child must
// not inherit a mutex that another thread of its parent holds.
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(lock_memory, unlock_memory, unlock_memory);
  pthread_atfork(lock_queues, unlock_queues, unlock_queues);
  pthread_atfork(nullptr, nullptr, remember_fork);
}

}  // namespace

const Settings& settings() {
  static const Settings read = read_settings();
  return read;
}

std::vector<int> visible_devices(const char* variable) {
  const int devices = settings().devices;
  std::vector<int> visible;
  const char* list = std::getenv(variable);
  if (list == nullptr) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  for (const char* rest = list;;) {
    char* end = nullptr;
    const long device = std::strtol(rest, &end, 10);
    // As in the real drivers, the first invalid entry ends the list.
    if (end == rest || device < 0 || device >= devices) break;
    visible.push_back(static_cast<int>(device));
    if (*end != ',') break;
    rest = end + 1;
  }
  return visible;
}

void count(Counter counter) noexcept {
  counters[static_cast<size_t>(counter)].fetch_add(1, std::memory_order_relaxed);
}

void mark_in_use(int device) noexcept {
  // Called on every switch of devices, so write only what changes.
  auto& flag = devices_in_use[device];
  if (!flag.load(std::memory_order_relaxed)) flag.store(true, std::memory_order_relaxed);
}

bool in_use(int device) noexcept {
  return devices_in_use[device].load(std::memory_order_relaxed);
}

bool in_forked_child() noexcept { return forked.load(std::memory_order_relaxed); }

}  // namespace simulated

using namespace simulated;

long simulated_stub(const char* name) {
  count(Counter::stub);
  if (settings().verbose) log_once(name);
  return 0;
}

long simulated_launch(const char* name) {
  count(Counter::launch);
  if (settings().verbose) log_once(name);
  return 0;
}

int simulated_devices() { return settings().devices; }

void simulated_set_capacity(int device, size_t bytes) {
  for (int each = 0; each < settings().devices; ++each) {
    if (device == each || device < 0) set_capacity(each, bytes);
  }
}

size_t simulated_capacity(int device) { return capacity(device); }

size_t simulated_used_bytes(int device) { return used_bytes(device); }

size_t simulated_context_bytes(int device) { return in_use(device) ? kContextBytes : 0; }

void simulated_set_busy(int busy) { set_busy(busy != 0); }

void simulated_set_pending_queries(int queries) { set_pending_queries(queries); }

uint64_t simulated_counter(const char* name) {
  for (size_t index = 0; index < kCounters; ++index) {
    if (std::strcmp(kCounterNames[index], name) == 0) return counters[index].load();
  }
  return UINT64_MAX;
}
