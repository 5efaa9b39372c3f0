// libcuda.so.1: the calls that expandable segments use, and torch's calls of the driver in addition
// to the runtime. Names and signatures are NVIDIA's. stubs.py makes stubs for the few other functions
// that torch and triton use, and for no more: libraries test for a symbol to learn the abilities of a
// driver.
#include <cstring>

#include "devices/memory.h"
#include "runtime.h"

using namespace simulated;
using namespace simulated::cuda;

namespace {

int driver_result(Outcome outcome) {
  switch (outcome) {
    case Outcome::done:
      return kSuccess;
    case Outcome::out_of_memory:
      return kOutOfMemory;
    default:
      return kInvalidValue;
  }
}

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// One context for each process, which is opaque.
char the_context;

// CUpointer_attribute.
constexpr int kPointerContext = 1;
constexpr int kPointerMemoryType = 2;
constexpr int kPointerOnDevice = 3;
constexpr int kPointerBufferId = 7;
constexpr int kPointerDeviceOrdinal = 9;

constexpr unsigned kDeviceMemory = 2;  // CU_MEMORYTYPE_DEVICE

// CUfunction_attribute.
constexpr int kFunctionMaxThreads = 0;
constexpr int kFunctionRegisters = 4;

}  // namespace

extern "C" {

int cudaGetSymbolAddress(void** address, const void*);

// Virtual memory.

int cuMemGetAllocationGranularity(size_t* granularity, const ChunkProperties*, int) {
  *granularity = kGranularity;
  return kSuccess;
}

int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  void* reserved = nullptr;
  const Outcome outcome = reserve(bytes, &reserved);
  *address = reinterpret_cast<uint64_t>(reserved);
  return driver_result(outcome);
}

int cuMemAddressFree(uint64_t address, size_t) { return driver_result(unreserve(pointer(address))); }

int cuMemCreate(uint64_t* chunk, size_t bytes, const ChunkProperties* properties,
                unsigned long long) {
  if (in_forked_child()) return kNotInitialized;
  if (!is_ordinal(properties->device)) return kInvalidDevice;
  return driver_result(create_chunk(device_of(properties->device), bytes, chunk));
}

int cuMemRelease(uint64_t chunk) { return driver_result(release_chunk(chunk)); }

int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t chunk, unsigned long long) {
  return driver_result(map(pointer(address), bytes, chunk));
}

int cuMemUnmap(uint64_t address, size_t bytes) { return driver_result(unmap(pointer(address), bytes)); }

int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return kSuccess; }

int cuMemRetainAllocationHandle(uint64_t* chunk, void* address) {
  return driver_result(hold_chunk_at(address, chunk));
}

int cuMemGetAddressRange_v2(uint64_t* start, size_t* bytes, uint64_t address) {
  Block block{};
  if (!find_block(pointer(address), &block)) return kNotFound;
  if (start != nullptr) *start = reinterpret_cast<uint64_t>(block.address);
  if (bytes != nullptr) *bytes = block.bytes;
  return kSuccess;
}

int cuMemGetAllocationPropertiesFromHandle(ChunkProperties* properties, uint64_t) {
  *properties = {};
  return kSuccess;
}

// Memory cannot be shared between processes.
int cuMemExportToShareableHandle(void*, uint64_t, int, unsigned long long) {
  return kNotSupported;
}
int cuMemImportFromShareableHandle(uint64_t*, void*, int) { return kNotSupported; }

// Devices and contexts.

int cuInit(unsigned) { return in_forked_child() ? kNotInitialized : kSuccess; }

int cuDriverGetVersion(int* version) {
  *version = cuda_version();
  return kSuccess;
}

int cuDeviceGetCount(int* devices) {
  *devices = static_cast<int>(visible().size());
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return is_ordinal(ordinal) ? kSuccess : kInvalidDevice;
}

int cuDeviceGetUuid(unsigned char* uuid, int ordinal) {
  write_uuid(device_of(ordinal), uuid);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int number, int) {
  *value = attribute(number);
  return kSuccess;
}

int cuDevicePrimaryCtxGetState(int ordinal, unsigned* flags, int* active) {
  *flags = 0;
  *active = in_use(device_of(ordinal));
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int ordinal) {
  mark_in_use(device_of(ordinal));
  *context = &the_context;
  return kSuccess;
}

int cuCtxGetDevice(int* ordinal) {
  *ordinal = current_ordinal();
  return kSuccess;
}

int cuCtxGetLimit(size_t* limit, int) {
  *limit = 0;
  return kSuccess;
}

int cuDeviceGetName(char* text, int length, int) {
  std::strncpy(text, device_name(), length);
  return kSuccess;
}

int cuDeviceTotalMem_v2(size_t* bytes, int ordinal) {
  *bytes = capacity(device_of(ordinal));
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  if (context != nullptr) *context = &the_context;
  return kSuccess;
}

int cuCtxGetCurrent(void** context) {
  *context = &the_context;
  return kSuccess;
}

int cuCtxSetCurrent(void*) { return kSuccess; }

int cuPointerGetAttribute(void* value, int number, uint64_t address) {
  Block block{};
  if (!find_block(pointer(address), &block)) return kInvalidValue;
  switch (number) {
    case kPointerDeviceOrdinal: {
      const int ordinal = ordinal_of(block.device);
      std::memcpy(value, &ordinal, sizeof(ordinal));
      return kSuccess;
    }
    case kPointerContext: {
      const void* context = &the_context;
      std::memcpy(value, &context, sizeof(context));
      return kSuccess;
    }
    case kPointerMemoryType:
      std::memcpy(value, &kDeviceMemory, sizeof(kDeviceMemory));
      return kSuccess;
    case kPointerOnDevice:
      std::memcpy(value, &address, sizeof(address));
      return kSuccess;
    case kPointerBufferId:
      std::memcpy(value, &block.address, sizeof(block.address));
      return kSuccess;
    default:
      return kNotSupported;
  }
}

// Memory without the runtime.

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  void* start = nullptr;
  const Outcome outcome = allocate(current_device(), bytes, &start);
  *address = reinterpret_cast<uint64_t>(start);
  return driver_result(outcome);
}

int cuMemFree_v2(uint64_t address) { return driver_result(deallocate(pointer(address))); }

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = free_bytes(current_device());
  *total = capacity(current_device());
  return kSuccess;
}

int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  copy(pointer(to), from, bytes);
  return kSuccess;
}

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  copy(to, pointer(from), bytes);
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}

// Kernels compiled at run time.

int cuModuleLoadData(void** module, const void*) {
  *module = &the_context;
  return kSuccess;
}

int cuModuleLoad(void** module, const char*) { return cuModuleLoadData(module, nullptr); }

int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(module, image);
}

int cuModuleGetFunction(void** function, void* module, const char*) {
  *function = module;
  return kSuccess;
}

int cuModuleGetGlobal_v2(uint64_t* address, size_t* bytes, void*, const char*) {
  void* start = nullptr;
  cudaGetSymbolAddress(&start, nullptr);
  if (address != nullptr) *address = reinterpret_cast<uint64_t>(start);
  if (bytes != nullptr) *bytes = 1;
  return kSuccess;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
  *blocks = 2;
  return kSuccess;
}

int cuOccupancyMaxActiveClusters(int* clusters, void*, const void*) {
  *clusters = attribute(16);
  return kSuccess;
}

int cuFuncGetAttribute(int* value, int number, void*) {
  *value = number == kFunctionMaxThreads  ? kMaxThreadsPerBlock
           : number == kFunctionRegisters ? kRegistersPerThread
                                          : 0;
  return kSuccess;
}

// Errors.

int cuGetErrorString(int error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory" : "error of the simulated driver";
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SIMULATED";
  return kSuccess;
}

}  // extern "C"
