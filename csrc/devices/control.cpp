#include "control.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
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
constexpr const char* kCounterNames[] = {
    "malloc", "free",   "create", "release", "map",  "unmap",
    "launch", "memcpy", "memset", "stub",    "unknown_workspaces"};
constexpr size_t kCounters = sizeof(kCounterNames) / sizeof(*kCounterNames);

std::atomic<uint64_t> counters[kCounters];
std::atomic<bool> devices_in_use[kMaxDevices];
std::atomic<bool> forked{false};
std::atomic<void (*)(void*, const void*, size_t)> on_read{nullptr};

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMost = int64_t{1} << 20;  // MiB on a device: 1 TiB

struct Number {
  const char* variable;
  int64_t Settings::*member;
  int64_t otherwise, least, most;
  int64_t unit = 1;
};

// Those of an A100 are the default. Of two variables for one member, the later one wins if it is
// set.
constexpr Number kNumbers[] = {
    {"SIMULATED_CAPACITY_MB", &Settings::capacity, 16384, 0, kMost, kMiB},
    {"SIMULATED_CAPACITY_BYTES", &Settings::capacity, -1, 0, kMost * kMiB},
    {"SIMULATED_OTHERS_MB", &Settings::others, 0, 0, kMost, kMiB},
    {"SIMULATED_DEVICES", &Settings::devices, 2, 0, kMaxDevices},
    {"SIMULATED_PENDING_QUERIES", &Settings::pending_queries, 0, 0, 1 << 30},
    {"SIMULATED_CUDA_VERSION", &Settings::cuda_version, 13000, 12000, 13999},
    {"SIMULATED_COMPUTE_CAPABILITY", &Settings::capability, 80, 50, 129},
    {"SIMULATED_MULTIPROCESSORS", &Settings::multiprocessors, 108, 1, 4096},
    {"SIMULATED_L2_BYTES", &Settings::l2_bytes, 40 * kMiB, 0, 1 << 30},
    {"SIMULATED_SHARED_MULTIPROCESSOR_BYTES", &Settings::shared_multiprocessor_bytes, 164 << 10,
     48 << 10, 1 << 30},
    {"SIMULATED_SHARED_BLOCK_BYTES", &Settings::shared_block_bytes, 163 << 10, 48 << 10, 1 << 30},
    {"SIMULATED_MULTIPROCESSOR_THREADS", &Settings::multiprocessor_threads, 2048, 1024, 1 << 20},
    {"SIMULATED_BUSY", &Settings::busy, 0, 0, 1},
    {"SIMULATED_BACKED", &Settings::backed, 0, 0, 1},
    {"SIMULATED_VERBOSE", &Settings::verbose, 0, 0, 1},
};
constexpr const char* kName = "SIMULATED_NAME";

[[noreturn]] void refuse(const char* variable, const char* value, const char* expected) {
  std::fprintf(stderr, "simulated: %s=%.80s must be %s\n", variable, value, expected);
  std::_Exit(2);
}

const char* set_value(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

void read(const Number& number, Settings* into) {
  int64_t parsed = number.otherwise;
  if (const char* value = set_value(number.variable)) {
    char* end = nullptr;
    errno = 0;
    parsed = std::strtoll(value, &end, 10);
    if (errno != 0 || *end != '\0' || parsed < number.least || parsed > number.most) {
      const std::string expected = "a whole number from " + std::to_string(number.least) + " to " +
                                   std::to_string(number.most);
      refuse(number.variable, value, expected.c_str());
    }
  } else if (parsed < 0) {
    return;
  }
  into->*number.member = parsed * number.unit;
}

Settings read_settings() {
  Settings all{};
  for (const Number& each : kNumbers) read(each, &all);
  if (const char* name = set_value(kName)) {
    if (std::strlen(name) >= sizeof(all.name)) refuse(kName, name, "shorter");
    std::strcpy(all.name, name);
  }
  return all;
}

void log_once(const void* stub) {
  Dl_info found{};
  if (dladdr(stub, &found) == 0 || found.dli_sname == nullptr) return;
  static auto* mutex = new std::mutex;
  static auto* logged = new std::set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  if (logged->insert(found.dli_sname).second) {
    std::fprintf(stderr, "simulated: %s\n", found.dli_sname);
  }
}

void remember_fork() {
  const auto used = [](const std::atomic<bool>& device) { return device.load(); };
  if (std::any_of(std::begin(devices_in_use), std::end(devices_in_use), used)) forked = true;
}

// Registered when the library is loaded, before any thread can be inside the model: a child must
// not inherit a mutex that another thread of its parent holds.
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(lock_memory, unlock_memory, unlock_memory);
  pthread_atfork(lock_copies, unlock_copies, unlock_copies);
  pthread_atfork(lock_queues, unlock_queues, unlock_queues);
  pthread_atfork(nullptr, nullptr, remember_fork);
}

}  // namespace

const Settings& settings() {
  static const Settings read = read_settings();
  return read;
}

std::vector<int> visible_devices(const char* variable) {
  const int devices = static_cast<int>(settings().devices);
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

uint64_t counted(Counter counter) noexcept {
  return counters[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
}

void note_read(void* destination, const void* source, size_t bytes) {
  if (const auto function = on_read.load()) function(destination, source, bytes);
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

long simulated_stub(const void* stub) {
  count(Counter::stub);
  if (settings().verbose) log_once(stub);
  return 0;
}

long simulated_launch(const void* stub) {
  count(Counter::launch);
  if (settings().verbose) log_once(stub);
  return 0;
}

long simulated_create(void** object) {
  static char the_object[512];
  count(Counter::stub);
  *object = the_object;
  return 0;
}

long simulated_unknown() {
  count(Counter::unknown_workspaces);
  return 0;
}

int simulated_devices() { return static_cast<int>(settings().devices); }

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

void simulated_set_on_read(void (*function)(void*, const void*, size_t)) { on_read = function; }

uint64_t simulated_counter(const char* name) {
  for (size_t index = 0; index < kCounters; ++index) {
    if (std::strcmp(kCounterNames[index], name) == 0) return counters[index].load();
  }
  return UINT64_MAX;
}
