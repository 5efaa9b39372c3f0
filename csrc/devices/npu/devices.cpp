// libascendcl.so, part 1: devices and memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "devices/memory.h"
#include "devices/queues.h"
#include "npu.h"

using namespace simulated;
using namespace simulated::npu;

namespace {

constexpr int kNoneSelected = -1;
thread_local int selected_ordinal = kNoneSelected;
bool initialized = false;

// One context for each device; its place in this array identifies the device.
char contexts[kMaxDevices];

constexpr size_t kPageBytes = 4096;

int result(Outcome outcome) {
  switch (outcome) {
    case Outcome::done:
      return ACL_SUCCESS;
    case Outcome::out_of_memory:
      return ACL_ERROR_RT_MEMORY_ALLOCATION;
    default:
      return ACL_ERROR_INVALID_PARAM;
  }
}

aclrtDrvMemHandle handle_of(uint64_t chunk) { return reinterpret_cast<aclrtDrvMemHandle>(chunk); }
uint64_t chunk_of(aclrtDrvMemHandle handle) { return reinterpret_cast<uint64_t>(handle); }

}  // namespace

int simulated::npu::current_device() { return device_of(selected_ordinal); }

extern "C" {

// The library. Versions and model select the code paths of torch_npu: those of a recent 910B.

aclError aclInit(const char*) {
  if (in_forked_child()) return ACL_ERROR_RT_INTERNAL_ERROR;
  if (initialized) return ACL_ERROR_REPEAT_INITIALIZE;
  initialized = true;
  return ACL_SUCCESS;
}

aclError aclFinalize() {
  initialized = false;
  return ACL_SUCCESS;
}

const char* aclGetRecentErrMsg() { return "the simulated CANN has no error message"; }
const char* aclrtGetSocName() { return *settings().name ? settings().name : "Ascend910B2"; }

aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  *version = {};
  std::strcpy(version->version, "8.5.0");
  return ACL_SUCCESS;
}

aclError aclsysGetVersionStr(char*, char* version) {
  std::strcpy(version, "8.5.0");
  return ACL_SUCCESS;
}

// Devices.

aclError aclrtGetDeviceCount(uint32_t* devices) {
  *devices = static_cast<uint32_t>(visible().size());
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t ordinal) {
  if (in_forked_child()) return ACL_ERROR_RT_INTERNAL_ERROR;
  if (!is_ordinal(ordinal)) return ACL_ERROR_INVALID_PARAM;
  selected_ordinal = ordinal;
  mark_in_use(device_of(ordinal));
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }

aclError aclrtGetDevice(int32_t* ordinal) {
  if (selected_ordinal == kNoneSelected && !initialized) return ACL_ERROR_RT_CONTEXT_NULL;
  *ordinal = selected_ordinal == kNoneSelected ? 0 : selected_ordinal;
  return ACL_SUCCESS;
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t ordinal, int32_t* const logical) {
  *logical = device_of(ordinal);
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  *context = &contexts[selected_ordinal == kNoneSelected ? 0 : selected_ordinal];
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return aclrtSetDevice(static_cast<int32_t>(static_cast<char*>(context) - contexts));
}

aclError aclrtGetPrimaryCtxState(int32_t ordinal, uint32_t* flags, int32_t* active) {
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = in_use(device_of(ordinal));
  return ACL_SUCCESS;
}

aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t ordinal, int32_t peer) {
  *can = ordinal != peer;
  return ACL_SUCCESS;
}

aclError aclrtDeviceGetBareTgid(int32_t* process) {
  *process = 1;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* rate) {
  *rate = {};
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo, int64_t* value) {
  *value = kCores;
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr, int64_t* value) {
  *value = kCores;
  return ACL_SUCCESS;
}

aclError aclGetCannAttributeList(const aclCannAttr** attributes, size_t* count) {
  static const aclCannAttr all[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16,
                                    ACL_CANN_ATTR_JIT_COMPILE};
  *attributes = all;
  *count = sizeof(all) / sizeof(*all);
  return ACL_SUCCESS;
}

aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
  *value = 1;
  return ACL_SUCCESS;
}

// Memory of the device.

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  *free = free_bytes(current_device());
  *total = capacity(current_device());
  return ACL_SUCCESS;
}

aclError aclrtGetMemUsageInfo(int32_t, aclrtMemUsageInfo*, size_t, size_t* components) {
  *components = 0;
  return ACL_SUCCESS;
}

aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy) {
  if (in_forked_child()) return ACL_ERROR_RT_INTERNAL_ERROR;
  return result(allocate(current_device(), bytes, address));
}

aclError aclrtMallocAlign32(void** address, size_t bytes, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(address, bytes, policy);
}

aclError aclrtFree(void* address) { return result(deallocate(address)); }

aclError aclrtReserveMemAddress(void** address, size_t bytes, size_t, void*, uint64_t) {
  return result(reserve(bytes, address));
}

aclError aclrtReleaseMemAddress(void* address) { return result(unreserve(address)); }

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t bytes,
                             const aclrtPhysicalMemProp* properties, uint64_t) {
  if (in_forked_child()) return ACL_ERROR_RT_INTERNAL_ERROR;
  const int ordinal = static_cast<int>(properties->location.id);
  if (!is_ordinal(ordinal)) return ACL_ERROR_INVALID_PARAM;
  uint64_t chunk = 0;
  const Outcome outcome = create_chunk(device_of(ordinal), bytes, &chunk);
  *handle = handle_of(chunk);
  return result(outcome);
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  return result(release_chunk(chunk_of(handle)));
}

aclError aclrtMapMem(void* address, size_t bytes, size_t, aclrtDrvMemHandle handle, uint64_t) {
  return result(map(address, bytes, chunk_of(handle)));
}

aclError aclrtUnmapMem(void* address) { return result(unmap(address)); }

aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
  *attributes = {};
  attributes->location.type =
      is_device_address(address) ? ACL_MEM_LOCATION_TYPE_DEVICE : ACL_MEM_LOCATION_TYPE_HOST;
  return ACL_SUCCESS;
}

// Memory of the host.

aclError aclrtMallocHost(void** address, size_t bytes) {
  const int failed = posix_memalign(address, kPageBytes, bytes == 0 ? 1 : bytes);
  return failed != 0 ? ACL_ERROR_RT_MEMORY_ALLOCATION : ACL_SUCCESS;
}

aclError aclrtMallocHostWithCfg(void** address, uint64_t bytes, aclrtMallocConfig*) {
  return aclrtMallocHost(address, bytes);
}

aclError aclrtFreeHost(void* address) {
  std::free(address);
  return ACL_SUCCESS;
}

// Copies, which are complete when the call returns.

aclError aclrtMemcpy(void* to, size_t space, const void* from, size_t bytes, aclrtMemcpyKind) {
  if (bytes > space) return ACL_ERROR_INVALID_PARAM;
  copy(to, from, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* to, size_t space, const void* from, size_t bytes,
                          aclrtMemcpyKind kind, aclrtStream) {
  return aclrtMemcpy(to, space, from, bytes, kind);
}

aclError aclrtMemset(void* to, size_t space, int32_t value, size_t bytes) {
  if (bytes > space) return ACL_ERROR_INVALID_PARAM;
  fill(to, value, bytes);
  return ACL_SUCCESS;
}

aclError aclrtMemsetAsync(void* to, size_t space, int32_t value, size_t bytes, aclrtStream) {
  return aclrtMemset(to, space, value, bytes);
}

}  // extern "C"
