// The CUDA hook: a tracker in torch's CUDA caching allocator. Compiled against c10's headers and
// the declarations in stand_in/, which replace the CUDA toolkit's headers.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <cstdint>
#include <string>

#include "caching_allocator.h"
#include "cublas_workspaces.h"

namespace {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

PYTRACER_FIELD(graph_capture_record_stream_reuse);
PYTRACER_FIELD(max_round_threshold);
PYTRACER_FIELD(max_cached_size);

PYTRACER_HAS(snapshot_can_omit_traces, std::declval<T&>().snapshot({0, 0}, false));
PYTRACER_HAS(has_memory_fraction, std::declval<T&>().getMemoryFraction(0));

// Reports the settings one by one.
class Settings {
 public:
  explicit Settings(const pytracer_state_sink& sink) : sink_(sink) {}
  void add(const char* key, bool value) const {
    report({nullptr, key, nullptr, 0, value, PYTRACER_BOOLEAN});
  }
  void add(const char* key, double value) const {
    report({nullptr, key, nullptr, value, 0, PYTRACER_REAL});
  }
  void add(const char* key, const std::string& value) const {
    report({nullptr, key, value.c_str(), 0, 0, PYTRACER_TEXT});
  }
  // The greatest size becomes -1, as torch shows it.
  void add(const char* key, size_t value, const char* group = nullptr) const {
    report({group, key, nullptr, 0, static_cast<int64_t>(value), PYTRACER_INTEGER});
  }

 private:
  void report(const pytracer_setting& setting) const { sink_.setting(sink_.context, &setting); }
  const pytracer_state_sink& sink_;
};

struct Cuda {
  using Allocator = torch_cuda::CUDAAllocator;
  using TraceEntry = torch_cuda::TraceEntry;
  static constexpr c10::DeviceType kDeviceType = c10::DeviceType::CUDA;
  static constexpr bool kHasClock = true;
  static constexpr const char* kVariable = "PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF";

  static int64_t now() { return static_cast<int64_t>(c10::getApproximateTime()); }

  // Omits traces where torch allows it: with torch's recorder on, copying them takes 100 MB and a
  // second.
  template <class Any>
  static auto take_snapshot(Any& allocator) {
    if constexpr (snapshot_can_omit_traces<Any>::value) {
      return allocator.snapshot({0, 0}, false);
    } else {
      return allocator.snapshot();
    }
  }

  // Does not change the thread's current device (torch 2.12.1 and 2.15.0; older releases have no
  // such function).
  template <class Any>
  static double memory_fraction(Any& allocator, int16_t device) {
    if constexpr (has_memory_fraction<Any>::value) {
      return allocator.getMemoryFraction(static_cast<c10::DeviceIndex>(device));
    } else {
      return 0;
    }
  }

  // The keys of torch.cuda.memory._snapshot()["allocator_settings"].
  template <class Info>
  static void report_settings(const Info& info, const pytracer_state_sink& sink) {
    const auto& config = info.config_metadata;
    using Config = std::decay_t<decltype(config)>;
    const Settings settings(sink);
    settings.add("PYTORCH_CUDA_ALLOC_CONF", config.last_allocator_settings);
    settings.add("max_split_size", config.max_split_size);
    settings.add("garbage_collection_threshold", config.garbage_collection_threshold);
    settings.add("expandable_segments", config.expandable_segments);
    settings.add("pinned_num_register_threads", config.pinned_num_register_threads);
    settings.add("release_lock_on_cudamalloc", config.release_lock_on_malloc);
    settings.add("pinned_use_cuda_host_register", config.pinned_use_host_register);
    if constexpr (has_graph_capture_record_stream_reuse<Config>::value) {
      settings.add("graph_capture_record_stream_reuse", config.graph_capture_record_stream_reuse);
    }
    if constexpr (has_max_round_threshold<Config>::value) {
      settings.add("max_round_threshold", config.max_round_threshold);
    }
    if constexpr (has_max_cached_size<Config>::value) {
      settings.add("max_cached_size", config.max_cached_size);
    }
    uint64_t size = 1;  // a power of two; the setting is for requests below it
    for (const size_t divisions : config.roundup_power2_divisions) {
      settings.add(std::to_string(size).c_str(), divisions, "roundup_power2_divisions");
      size *= 2;
    }
  }
};

int32_t attach(pytracer_record_fn record, const uint32_t* enabled, char* message,
               size_t message_size) {
  find_workspace_maps();
  return Hook<Cuda>::attach(record, enabled, message, message_size);
}

const pytracer_hook hook = {PYTRACER_HOOK_ABI, "cuda", &attach, &Cuda::now,
                            &Hook<Cuda>::snapshot, nullptr, &read_workspaces};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_hook* pytracer_hook_v1(void) {
  return &hook;
}
