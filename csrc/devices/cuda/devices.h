// The devices as CUDA shows them: ordinals count the visible devices, the model's numbers count all
// devices.
#pragma once

#include <vector>

#include "devices/control.h"
#include "types.h"

namespace simulated::cuda {

inline const std::vector<int>& visible() {
  static const auto* devices = new std::vector<int>(visible_devices("CUDA_VISIBLE_DEVICES"));
  return *devices;
}

inline bool is_ordinal(int ordinal) {
  return ordinal >= 0 && ordinal < static_cast<int>(visible().size());
}

// Returns the model's number. An invalid ordinal stands for the first device.
inline int device_of(int ordinal) { return is_ordinal(ordinal) ? visible()[ordinal] : 0; }

inline int ordinal_of(int device) {
  for (int ordinal = 0; is_ordinal(ordinal); ++ordinal) {
    if (visible()[ordinal] == device) return ordinal;
  }
  return -1;
}

// The identity of a device for CUDA and NVML: "0000:01:00.0", and 16 bytes that end in its number.
inline int pci_bus(int device) { return device + 1; }
constexpr int kUuidBytes = 16;
inline void write_uuid(int device, unsigned char uuid[kUuidBytes]) {
  for (int i = 0; i < kUuidBytes; ++i) uuid[i] = static_cast<unsigned char>(0xa0 + i);
  uuid[kUuidBytes - 1] = static_cast<unsigned char>(device);
}

// The properties of every device in the driver and the runtime that no setting has.
constexpr int kWarpSize = 32;
constexpr int kMaxThreadsPerBlock = 1024;
constexpr int kRegisters = 65536;
constexpr int kSharedBytesPerBlock = 48 << 10;
constexpr int kRegistersPerThread = 32;
constexpr int kCuda13 = 13000;
inline int cuda_version() { return static_cast<int>(settings().cuda_version); }
inline const char* device_name() { return *settings().name ? settings().name : "Simulated GPU"; }

// Returns the value of a cudaDevAttr… or CU_DEVICE_ATTRIBUTE_…, which have the same numbers; 0
// means "no" for properties that are not simulated (multicast, fabric handles, RDMA).
inline int attribute(int number) {
  const Settings& device = settings();
  switch (number) {
    case 1:  // threads in a block, and its first two dimensions
    case 2:
    case 3:
      return kMaxThreadsPerBlock;
    case 4:  // its third dimension
      return 64;
    case 5:  // dimensions of a grid
      return 2147483647;
    case 6:
    case 7:
      return 65535;
    case 8:
      return kSharedBytesPerBlock;
    case 10:
      return kWarpSize;
    case 12:  // registers of a block
    case 82:  // and of a multiprocessor
      return kRegisters;
    case 13:  // kHz
      return 1410000;
    case 16:
      return static_cast<int>(device.multiprocessors);
    case 31:  // concurrent kernels
    case 41:  // unified addresses
    case 95:  // cooperative launches
    case 102:  // virtual memory
    case 115:  // memory pools
      return 1;
    case 38:  // L2 cache
      return static_cast<int>(device.l2_bytes);
    case 39:  // threads on a multiprocessor
      return static_cast<int>(device.multiprocessor_threads);
    case 75:
      return static_cast<int>(device.capability / 10);
    case 76:
      return static_cast<int>(device.capability % 10);
    case 81:
      return static_cast<int>(device.shared_multiprocessor_bytes);
    case 97:
      return static_cast<int>(device.shared_block_bytes);
    case 106:  // blocks on a multiprocessor
      return 32;
    default:
      return 0;
  }
}

}  // namespace simulated::cuda
