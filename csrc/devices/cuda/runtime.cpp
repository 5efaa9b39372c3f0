// libcudart.so, part 1: devices, errors, memory. Names and signatures are NVIDIA's.
#include "runtime.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

using namespace simulated;
using namespace simulated::cuda;

namespace {

thread_local int selected_ordinal = 0;
thread_local int last_error = kSuccess;

// cudaMemoryType.
enum MemoryType { kUnregistered = 0, kHost = 1, kDevice = 2 };

// cudaMemPoolAttr: the attributes that report memory.
constexpr int kPoolReservedNow = 5;
constexpr int kPoolUsedNow = 7;
char the_pool;

constexpr size_t kPageBytes = 4096;

}  // namespace

namespace simulated::cuda {

int current_ordinal() { return selected_ordinal; }

int fail(int error) {
  last_error = error;
  return error;
}

int result(Outcome outcome) {
  switch (outcome) {
    case Outcome::done:
      return kSuccess;
    case Outcome::out_of_memory:
      return fail(kOutOfMemory);
    default:
      return fail(kInvalidValue);
  }
}

}  // namespace simulated::cuda

namespace {

template <int kMajor>
int describe_device(DeviceProperties<kMajor>* properties, int ordinal) {
  if (!is_ordinal(ordinal)) return fail(kInvalidDevice);
  const int device = device_of(ordinal);
  *properties = {};
  std::strcpy(properties->name, device_name());
  write_uuid(device, properties->uuid);
  properties->pci_bus = pci_bus(device);
  properties->total_global_memory = capacity(device);
  properties->major = attribute(75);
  properties->minor = attribute(76);
  properties->warp_size = kWarpSize;
  properties->multiprocessors = attribute(16);
  properties->max_threads_per_block = kMaxThreadsPerBlock;
  properties->max_threads_per_multiprocessor = attribute(39);
  properties->max_blocks_per_multiprocessor = attribute(106);
  for (int axis = 0; axis < 3; ++axis) {
    properties->max_threads_dim[axis] = attribute(2 + axis);
    properties->max_grid_size[axis] = attribute(5 + axis);
  }
  properties->registers_per_block = kRegisters;
  properties->registers_per_multiprocessor = kRegisters;
  properties->shared_memory_per_block = kSharedBytesPerBlock;
  properties->shared_memory_per_block_optin = attribute(97);
  properties->shared_memory_per_multiprocessor = attribute(81);
  properties->reserved_shared_memory_per_block = 1024;
  properties->l2_cache_size = attribute(38);
  properties->memory_bus_width = 5120;
  properties->memory_pitch = 2147483647;
  properties->total_constant_memory = 65536;
  properties->texture_alignment = 512;
  properties->can_map_host_memory = 1;
  properties->concurrent_kernels = 1;
  properties->async_engines = 3;
  properties->unified_addressing = 1;
  properties->stream_priorities = 1;
  properties->managed_memory = 1;
  properties->cooperative_launch = 1;
  properties->memory_pools = 1;
  properties->host_register = 1;
  return kSuccess;
}

}  // namespace

extern "C" {

// Devices.

int cudaGetDeviceCount(int* devices) {
  if (in_forked_child()) return fail(kNotInitialized);
  *devices = static_cast<int>(visible().size());
  return kSuccess;
}

int cudaGetDevice(int* ordinal) {
  if (in_forked_child()) return fail(kNotInitialized);
  *ordinal = selected_ordinal;
  return kSuccess;
}

int cudaSetDevice(int ordinal) {
  if (in_forked_child()) return fail(kNotInitialized);
  if (!is_ordinal(ordinal)) return fail(kInvalidDevice);
  selected_ordinal = ordinal;
  mark_in_use(device_of(ordinal));
  return kSuccess;
}

int cudaDriverGetVersion(int* version) {
  *version = cuda_version();
  return kSuccess;
}

int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

int cudaGetDeviceProperties(DeviceProperties<13>* properties, int ordinal) {
  return describe_device(properties, ordinal);
}

int cudaGetDeviceProperties_v2(DeviceProperties<12>* properties, int ordinal) {
  return describe_device(properties, ordinal);
}

int cudaDeviceGetAttribute(int* value, int number, int) {
  *value = attribute(number);
  return kSuccess;
}

int cudaDeviceGetPCIBusId(char* text, int length, int ordinal) {
  std::snprintf(text, length, "0000:%02x:00.0", pci_bus(device_of(ordinal)));
  return kSuccess;
}

int cudaDeviceCanAccessPeer(int* can, int ordinal, int peer) {
  *can = ordinal != peer;
  return kSuccess;
}

// torch looks up the driver's functions here: "cuMemMap" for a function that may be "cuMemMap_v2".
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                     unsigned long long, int* status) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  *function = dlsym(driver, (std::string(name) + "_v2").c_str());
  if (*function == nullptr) *function = dlsym(driver, name);
  constexpr int kFound = 0;
  constexpr int kSymbolNotFound = 1;
  if (status != nullptr) *status = *function != nullptr ? kFound : kSymbolNotFound;
  return kSuccess;
}

int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                            int* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}

// Errors.

int cudaGetLastError() {
  const int error = last_error;
  last_error = kSuccess;
  return error;
}

int cudaPeekAtLastError() { return last_error; }

// Memory of the device.

int cudaMalloc(void** address, size_t bytes) {
  if (in_forked_child()) return fail(kNotInitialized);
  return result(allocate(current_device(), bytes, address));
}

int cudaFree(void* address) {
  // Programs call cudaFree(nullptr) to create the context.
  if (address == nullptr) return kSuccess;
  return result(deallocate(address));
}

int cudaMallocAsync(void** address, size_t bytes, void*) { return cudaMalloc(address, bytes); }

int cudaFreeAsync(void* address, void*) { return cudaFree(address); }

int cudaMemGetInfo(size_t* free, size_t* total) {
  if (in_forked_child()) return fail(kNotInitialized);
  *free = free_bytes(current_device());
  *total = capacity(current_device());
  return kSuccess;
}

int cudaDeviceGetDefaultMemPool(void** pool, int) {
  *pool = &the_pool;
  return kSuccess;
}

int cudaMemPoolGetAttribute(void*, int attribute, void* value) {
  const bool is_size = attribute == kPoolReservedNow || attribute == kPoolUsedNow;
  const uint64_t bytes = is_size ? used_bytes(current_device()) : 0;
  std::memcpy(value, &bytes, sizeof(bytes));
  return kSuccess;
}

// A __device__ variable has an address and takes no memory.
int cudaGetSymbolAddress(void** address, const void*) {
  static void* variable = [] {
    void* reserved = nullptr;
    reserve(kGranularity, &reserved);
    return reserved;
  }();
  *address = variable;
  return kSuccess;
}

int cudaIpcGetMemHandle(IpcHandle* handle, void* address) {
  *handle = {};
  std::memcpy(handle->bytes, &address, sizeof(address));
  return kSuccess;
}

// Works only in the process that made the handle: in another process the address has no meaning.
int cudaIpcOpenMemHandle(void** address, IpcHandle handle, unsigned) {
  std::memcpy(address, handle.bytes, sizeof(*address));
  return kSuccess;
}

// Memory of the host.

int cudaHostAlloc(void** address, size_t bytes, unsigned) {
  if (posix_memalign(address, kPageBytes, bytes == 0 ? 1 : bytes) != 0) return fail(kOutOfMemory);
  register_host(*address, bytes);
  return kSuccess;
}

int cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

int cudaMallocManaged(void** address, size_t bytes, unsigned) {
  return cudaHostAlloc(address, bytes, 0);
}

int cudaFreeHost(void* address) {
  unregister_host(address);
  std::free(address);
  return kSuccess;
}

int cudaHostRegister(void* address, size_t bytes, unsigned) {
  register_host(address, bytes);
  return kSuccess;
}

int cudaHostUnregister(void* address) {
  unregister_host(address);
  return kSuccess;
}

int cudaHostGetDevicePointer(void** on_device, void* address, unsigned) {
  *on_device = address;
  return kSuccess;
}

int cudaPointerGetAttributes(PointerAttributes* attributes, const void* address) {
  const bool is_short = cuda_version() < kCuda13;
  std::memset(attributes, 0,
              is_short ? offsetof(PointerAttributes, reserved) : sizeof(*attributes));
  void* plain = const_cast<void*>(address);
  attributes->type = kUnregistered;
  attributes->device = -1;
  attributes->host_pointer = plain;
  Block block{};
  if (is_device_address(address)) {
    attributes->type = kDevice;
    attributes->device = find_block(address, &block) ? ordinal_of(block.device) : 0;
    attributes->device_pointer = plain;
    attributes->host_pointer = nullptr;
  } else if (is_registered_host(address)) {
    attributes->type = kHost;
    attributes->device = 0;
    attributes->device_pointer = plain;
  }
  return kSuccess;
}

// Copies, which are complete when the call returns.

int cudaMemcpy(void* to, const void* from, size_t bytes, int) {
  copy(to, from, bytes);
  return kSuccess;
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void*) {
  copy(to, from, bytes);
  return kSuccess;
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) {
  copy(to, from, bytes);
  return kSuccess;
}

int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                      size_t height, int, void*) {
  for (size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
         width);
  }
  return kSuccess;
}

int cudaMemset(void* to, int value, size_t bytes) {
  fill(to, value, bytes);
  return kSuccess;
}

int cudaMemsetAsync(void* to, int value, size_t bytes, void*) {
  fill(to, value, bytes);
  return kSuccess;
}

}  // extern "C"
