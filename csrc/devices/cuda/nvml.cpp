// libnvidia-ml.so.1: the devices, and the memory that processes use on them. Names and signatures
// are NVIDIA's. NVML ignores CUDA_VISIBLE_DEVICES: its devices are all devices of the model.
//
// With SIMULATED_NVML=0 the initialisation fails, as in a container without NVML.
//
// This process is the only one. A process with a context on a device uses its allocated bytes and
// kContextBytes, and the device is larger than its capacity by the latter.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "devices/memory.h"
#include "devices.h"

using namespace simulated;
using namespace simulated::cuda;

namespace {

// nvmlReturn_t.
enum Return {
  kNvmlSuccess = 0,
  kNvmlInvalidArgument = 2,
  kNvmlNotSupported = 3,
  kNvmlNotFound = 6,
  kNvmlInsufficientSize = 7,
  kNvmlDriverNotLoaded = 9,
};

// nvmlProcessInfo_v1_t, and nvmlProcessInfo_v2_t, which the third function also uses.
struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};
struct ProcessV2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

// nvmlMemory_t and nvmlMemory_v2_t.
struct MemoryV1 {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

// nvmlPciInfo_t.
struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

// A handle points to the entry of its device.
char handles[kMaxDevices];

int number_of(const void* handle) {
  return static_cast<int>(static_cast<const char*>(handle) - handles);
}

int handle_of(int device, void** handle) {
  if (device < 0 || device >= settings().devices) return kNvmlNotFound;
  *handle = &handles[device];
  return kNvmlSuccess;
}

int put(char* text, unsigned length, const char* value) {
  if (std::strlen(value) >= length) return kNvmlInsufficientSize;
  std::strcpy(text, value);
  return kNvmlSuccess;
}

constexpr size_t kUuidText = sizeof("GPU-00000000-0000-0000-0000-000000000000");

void write_uuid_text(int device, char text[kUuidText]) {
  unsigned char uuid[kUuidBytes];
  write_uuid(device, uuid);
  char* end = text + std::sprintf(text, "GPU-");
  for (int i = 0; i < kUuidBytes; ++i) {
    const bool group_starts = i == 4 || i == 6 || i == 8 || i == 10;
    end += std::sprintf(end, group_starts ? "-%02x" : "%02x", uuid[i]);
  }
}

unsigned long long process_bytes(int device) {
  return used_bytes(device) + simulated_context_bytes(device);
}

template <typename Process>
int list_processes(const void* handle, unsigned* count, Process* processes) {
  const int device = number_of(handle);
  const unsigned space = *count;
  *count = in_use(device) ? 1 : 0;
  if (*count > space) return kNvmlInsufficientSize;
  if (*count == 0) return kNvmlSuccess;
  processes[0] = {};
  processes[0].pid = static_cast<unsigned>(getpid());
  processes[0].used = process_bytes(device);
  return kNvmlSuccess;
}

template <typename Memory>
void report(const void* handle, Memory* memory) {
  const int device = number_of(handle);
  memory->total = capacity(device) + kContextBytes;
  memory->used = process_bytes(device);
  memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* answers = std::getenv("SIMULATED_NVML");
  const bool is_off = answers != nullptr && std::strcmp(answers, "0") == 0;
  return is_off ? kNvmlDriverNotLoaded : kNvmlSuccess;
}

int nvmlInit() { return nvmlInit_v2(); }
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() { return kNvmlSuccess; }

const char* nvmlErrorString(int error) {
  return error == kNvmlSuccess ? "Success" : "error of the simulated NVML";
}

int nvmlSystemGetCudaDriverVersion(int* version) {
  *version = cuda_version();
  return kNvmlSuccess;
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  return put(text, length, "580.00.00");
}

int nvmlDeviceGetCount_v2(unsigned* devices) {
  *devices = static_cast<unsigned>(settings().devices);
  return kNvmlSuccess;
}

int nvmlDeviceGetCount(unsigned* devices) { return nvmlDeviceGetCount_v2(devices); }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  const int found = handle_of(static_cast<int>(index), handle);
  return found == kNvmlNotFound ? kNvmlInvalidArgument : found;
}

int nvmlDeviceGetHandleByUUID(const char* wanted, void** handle) {
  for (int device = 0; device < settings().devices; ++device) {
    char uuid[kUuidText];
    write_uuid_text(device, uuid);
    if (std::strcmp(uuid, wanted) == 0) return handle_of(device, handle);
  }
  return kNvmlNotFound;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  // The ids "0000:01:00.0", and those with eight digits of the domain.
  unsigned domain = 0;
  unsigned bus = 0;
  if (std::sscanf(bus_id, "%x:%x", &domain, &bus) != 2) return kNvmlInvalidArgument;
  return handle_of(static_cast<int>(bus) - pci_bus(0), handle);
}

int nvmlDeviceGetIndex(void* handle, unsigned* index) {
  *index = static_cast<unsigned>(number_of(handle));
  return kNvmlSuccess;
}

int nvmlDeviceGetName(void*, char* text, unsigned length) {
  return put(text, length, device_name());
}

int nvmlDeviceGetUUID(void* handle, char* text, unsigned length) {
  char uuid[kUuidText];
  write_uuid_text(number_of(handle), uuid);
  return put(text, length, uuid);
}

int nvmlDeviceGetPciInfo_v3(void* handle, PciInfo* info) {
  *info = {};
  info->bus = static_cast<unsigned>(pci_bus(number_of(handle)));
  std::snprintf(info->bus_id_legacy, sizeof(info->bus_id_legacy), "0000:%02x:00.0", info->bus);
  std::snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02x:00.0", info->bus);
  return kNvmlSuccess;
}

int nvmlDeviceGetMemoryInfo(void* handle, MemoryV1* memory) {
  report(handle, memory);
  return kNvmlSuccess;
}

int nvmlDeviceGetMemoryInfo_v2(void* handle, MemoryV2* memory) {
  report(handle, memory);
  memory->reserved = 0;
  return kNvmlSuccess;
}

// torch calls the first version; nvml.h defines the third.
int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, ProcessV1* processes) {
  return list_processes(handle, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void* handle, unsigned* count, ProcessV2* processes) {
  return list_processes(handle, count, processes);
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, ProcessV2* processes) {
  return list_processes(handle, count, processes);
}

// torch treats any other result as an error; it has set the answer to "not supported" itself.
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNvmlSuccess; }

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNvmlNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNvmlNotSupported; }
int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  *status = kNvmlSuccess;
  return kNvmlSuccess;
}

}  // extern "C"
