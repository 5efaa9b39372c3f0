// Threads that allocate and free blocks without Python, and a tracker that does nothing.
// ctypes calls these C functions and releases the GIL. The file is compiled for the running torch,
// with BENCH_CUDA or BENCH_NPU if there is a caching allocator to attach a tracker to.
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#if defined(BENCH_CUDA)
#include <c10/cuda/CUDACachingAllocator.h>
namespace caching = c10::cuda::CUDACachingAllocator;
using CachingAllocator = caching::CUDAAllocator;
#elif defined(BENCH_NPU)
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>
namespace caching = c10_npu::NPUCachingAllocator;
using CachingAllocator = caching::NPUAllocator;
#endif

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Each of `count` threads allocates and frees blocks of `size` bytes on its device (such as
// "cuda:1") for `nanoseconds`. Returns the nanoseconds of a thread's pair. An exception of torch
// ends the process.
EXPORTED double pairs_in_threads(const char* const* devices, size_t count, size_t size,
                                 uint64_t nanoseconds) {
  std::atomic<size_t> ready{0};
  std::atomic<bool> begun{false}, over{false};
  std::atomic<uint64_t> pairs{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, device = c10::Device(std::string(devices[i]))] {
      const c10::DeviceGuard guard(device);
      c10::Allocator* const allocator = c10::GetAllocator(device.type());
      uint64_t own = 0;
      ++ready;
      while (!begun.load(std::memory_order_acquire)) std::this_thread::yield();
      for (; !over.load(std::memory_order_relaxed); ++own) {
        const c10::DataPtr block = allocator->allocate(size);
      }
      pairs += own;
    });
  }
  using Clock = std::chrono::steady_clock;
  while (ready != count) std::this_thread::yield();
  const auto begin = Clock::now();
  begun = true;
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  over = true;
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
  for (auto& thread : threads) thread.join();
  return elapsed.count() * static_cast<double>(count) / static_cast<double>(pairs);
}

#if defined(BENCH_CUDA) || defined(BENCH_NPU)
// Attaches the tracker for the rest of the process, as torch cannot detach it. The device must be
// initialised.
EXPORTED void attach_empty_tracker(const char* device) {
  static const bool once = [&] {
    c10::Allocator* const allocator = c10::GetAllocator(c10::Device(std::string(device)).type());
    static_cast<CachingAllocator*>(allocator)->attachAllocatorTraceTracker(
        [](const caching::TraceEntry&) {});
    return true;
  }();
  static_cast<void>(once);
}
#endif
