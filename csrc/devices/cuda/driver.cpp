// libcuda.so.1: the calls that expandable segments use, and torch's calls of the driver in addition
// to the runtime. Names and signatures are NVIDIA's. make_libraries.py adds stubs for the few other
// functions that torch imports, and for no more: libraries test for a symbol to learn the abilities
// of a driver.
#include <cstring>

#include "devices/memory.h"
#include "devices.h"

using namespace simulated;
using namespace simulated::cuda;

namespace {

int result(Outcome outcome) {
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
constexpr int kPointerBufferId = 7;
constexpr int kPointerDeviceOrdinal = 9;

// CUfunction_attribute.
constexpr int kFunctionMaxThreads = 0;
constexpr int kFunctionRegisters = 4;

}  // namespace

extern "C" {

// Virtual memory.

int cuMemGetAllocationGranularity(size_t* granularity, const ChunkProperties*, int) {
  *granularity = kGranularity;
  return kSuccess;
}

int cuMemAddressReserve(uint64_t* address, size_t bytes, size_t, uint64_t, unsigned long long) {
  void* reserved = nullptr;
  const Outcome outcome = reserve(bytes, &reserved);
  *address = reinterpret_cast<uint64_t>(reserved);
  return result(outcome);
}

int cuMemAddressFree(uint64_t address, size_t) { return result(unreserve(pointer(address))); }

int cuMemCreate(uint64_t* chunk, size_t bytes, const ChunkProperties* properties,
                unsigned long long) {
  if (in_forked_child()) return kNotInitialized;
  if (!is_ordinal(properties->device)) return kInvalidDevice;
  return result(create_chunk(device_of(properties->device), bytes, chunk));
}

int cuMemRelease(uint64_t chunk) { return result(release_chunk(chunk)); }

int cuMemMap(uint64_t address, size_t bytes, size_t, uint64_t chunk, unsigned long long) {
  return result(map(pointer(address), bytes, chunk));
}

int cuMemUnmap(uint64_t address, size_t bytes) { return result(unmap(pointer(address), bytes)); }

int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return kSuccess; }

int cuMemRetainAllocationHandle(uint64_t* chunk, void* address) {
  return result(hold_chunk_at(address, chunk));
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
  *version = kCudaVersion;
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
    case kPointerBufferId:
      std::memcpy(value, &block.address, sizeof(block.address));
      return kSuccess;
    default:
      return kNotSupported;
  }
}

// Kernels compiled at run time.

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
