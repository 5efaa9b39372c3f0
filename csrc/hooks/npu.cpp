// The NPU hook: a tracker in torch_npu's caching allocator. Needs a torch_npu whose allocator has
// attachAllocatorTraceTracker (2.13.0 and later, and late posts of earlier ones).
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>

#include "caching_allocator.h"

namespace {

struct Npu {
  using Allocator = c10_npu::NPUCachingAllocator::NPUAllocator;
  using TraceEntry = c10_npu::NPUCachingAllocator::TraceEntry;
  static constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;
  static constexpr bool kHasClock = false;
  static constexpr const char* kVariable = "PYTORCH_NPU_ALLOC_CONF";
  // Unknown: asking torch_npu for it would change the thread's current device.
  static double memory_fraction(Allocator&, int16_t) { return 0; }
  static auto take_snapshot(Allocator& allocator) { return allocator.snapshot(); }
  template <class Info>
  static void report_settings(const Info&, const pytracer_state_sink&) {}  // its snapshot has none
};

const pytracer_hook hook = {PYTRACER_HOOK_ABI, "npu", &Hook<Npu>::attach, nullptr,
                            &Hook<Npu>::snapshot, nullptr, nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_hook* pytracer_hook_v1(void) {
  return &hook;
}
