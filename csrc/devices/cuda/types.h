// The parts of the ABI of CUDA 12 and 13 that the simulation shares with torch, declared here so that
// no header of NVIDIA is needed. Handles are void pointers and enumerations are int, because C symbols
// carry no types. Within one major version of CUDA these layouts do not change; reserved members ensure
// this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simulated::cuda {

// cudaError_t and CUresult have the same values of these.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kMissingConfiguration = 52,
  kInvalidDevice = 101,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kPeerAccessAlreadyEnabled = 704,
  kNotSupported = 801,
};

struct Dim3 {
  unsigned x, y, z;
};

// cudaDeviceProp of CUDA 12 or 13. Arrays of no elements stand for members of CUDA 12 alone.
template <int kMajor>
struct DeviceProperties {
  static constexpr int k12 = kMajor == 12 ? 1 : 0;

  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_memory;
  size_t shared_memory_per_block;
  int registers_per_block;
  int warp_size;
  size_t memory_pitch;
  int max_threads_per_block;
  int max_threads_dim[3];
  int max_grid_size[3];
  int clock_rate[k12];
  size_t total_constant_memory;
  int major;
  int minor;
  size_t texture_alignment;
  size_t texture_pitch_alignment;
  int device_overlap[k12];
  int multiprocessors;
  int kernel_timeout[k12];
  int integrated;
  int can_map_host_memory;
  int compute_mode[k12];
  int texture_and_surface_limits[39 + k12];
  size_t surface_alignment;
  int concurrent_kernels;
  int ecc_enabled;
  int pci_bus;
  int pci_device;
  int pci_domain;
  int tcc_driver;
  int async_engines;
  int unified_addressing;
  int memory_clock_rate[k12];
  int memory_bus_width;
  int l2_cache_size;
  int persisting_l2_cache_size;
  int max_threads_per_multiprocessor;
  int stream_priorities;
  int global_l1_cache;
  int local_l1_cache;
  size_t shared_memory_per_multiprocessor;
  int registers_per_multiprocessor;
  int managed_memory;
  int multi_gpu_board[2];
  int host_native_atomics;
  int single_to_double_ratio[k12];
  int host_and_managed_access[4];
  int cooperative_launch;
  int cooperative_multi_device_launch[k12];
  size_t shared_memory_per_block_optin;
  int page_tables[2];
  int max_blocks_per_multiprocessor;
  int access_policy_window_size;
  size_t reserved_shared_memory_per_block;
  int host_register;
  int sparse_arrays;
  int host_register_read_only;
  int timeline_semaphores;
  int memory_pools;
  int others[71];
};
static_assert(sizeof(DeviceProperties<12>) == 1032 && sizeof(DeviceProperties<13>) == 1008);

// cudaFuncAttributes.
struct FunctionAttributes {
  size_t static_memory[3];
  int max_threads_per_block;
  int registers;
  int ptx_version;
  int binary_version;
  int cache_mode;
  int max_dynamic_shared_bytes;
  int others[7];
  int reserved[16];
};

// cudaPointerAttributes.
struct PointerAttributes {
  int type;  // 0 unregistered, 1 host, 2 device
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];  // not in CUDA 12
};

// CUmemAllocationProp.
struct ChunkProperties {
  int type;
  int handle_types;
  int location_type;
  int device;
  void* unused;
  unsigned char flags[8];
};

// cudaIpcMemHandle_t and cudaIpcEventHandle_t.
struct IpcHandle {
  char bytes[64];
};

}  // namespace simulated::cuda
