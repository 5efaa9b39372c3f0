// The CPU hook: a c10 allocator that delegates to the one it found and reports every allocation
// and free. Compiled on the user's machine against the running torch's c10 headers.
//
// 1. Every DataPtr it returns has ctx == data and deleter == raw_deleter(), because parts of torch
//    use the raw interface (raw_allocate / raw_deallocate) and must go on working.
// 2. An allocation is reported after the base call and a free before the base deleter: the other
//    way round another thread could reuse the address first and the two events would swap.
// 3. Once installed it stays: blocks it handed out carry its deleter for as long as they live, past
//    static destruction too. All state is therefore leaked on purpose.
// 4. The CPU allocator has no lock of its own: `record` is called from many threads at once.
// 5. An exception of the base's goes on as it came. Memory has run out then: that is reported first.
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "../hook.h"

namespace {

pytracer_record_fn g_record = nullptr;
pytracer_oom_fn g_tell_oom = nullptr;
const uint32_t* g_enabled = nullptr;
c10::Allocator* g_base = nullptr;
c10::DeleterFnPtr g_base_delete = nullptr;

inline bool enabled() noexcept { return __atomic_load_n(g_enabled, __ATOMIC_ACQUIRE) != 0; }

void report(uint8_t action, uint64_t address, size_t size) noexcept {
  pytracer_event event{};
  event.address = address;
  event.size = size;
  event.device = PYTRACER_CPU_DEVICE;
  event.action = action;
  g_record(&event);
}

uint64_t bytes_of_pages(int name) noexcept {
  const long pages = sysconf(name);
  return pages > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

void report_oom(size_t size) noexcept {
  const uint64_t free_size = bytes_of_pages(_SC_AVPHYS_PAGES);
  report(PYTRACER_OOM, free_size, size);
  g_tell_oom(size, bytes_of_pages(_SC_PHYS_PAGES), free_size);
}

void delete_traced(void* data) {
  if (data != nullptr && enabled()) {
    report(PYTRACER_FREE_COMPLETED, reinterpret_cast<uint64_t>(data), 0);
  }
  g_base_delete(data);
}

class TracedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr block = allocate_from_base(size);
    void* data = block.get();
    // A block that is not the base's usual kind keeps its own context and deleter, untraced.
    if (data == nullptr || block.get_context() != data ||
        !block.compare_exchange_deleter(g_base_delete, &delete_traced)) {
      return block;
    }
    if (enabled()) report(PYTRACER_ALLOC, reinterpret_cast<uint64_t>(data), size);
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_traced; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    g_base->copy_data(dest, src, count);
  }

 private:
  static c10::DataPtr allocate_from_base(size_t size) {
    try {
      return g_base->allocate(size);
    } catch (const std::exception&) {
      if (enabled()) report_oom(size);
      throw;
    }
  }
};

void observe_oom(pytracer_oom_fn tell) { g_tell_oom = tell; }

int32_t attach(pytracer_record_fn record, const uint32_t* enabled, char* message,
               size_t message_size) {
  try {
    static TracedAllocator* const traced = new TracedAllocator;
    if (c10::GetCPUAllocator() == traced) return 0;
    if (g_base != nullptr) {
      // Wrapping whoever wrapped us would recurse: that allocator may delegate to ours.
      std::snprintf(message, message_size,
                    "another library replaced the CPU allocator after pytracer attached to it");
      return 1;
    }
    c10::Allocator* base = c10::GetCPUAllocator();
    c10::DeleterFnPtr base_delete = base->raw_deleter();
    if (base_delete == nullptr) {
      std::snprintf(message, message_size,
                    "the CPU allocator in place has no raw deleter, so it cannot be wrapped");
      return 1;
    }
    g_record = record;
    g_enabled = enabled;
    g_base = base;
    g_base_delete = base_delete;
    // The smallest priority that is accepted, so that we outrank nobody more than needed.
    for (int priority = 0; priority <= 255; ++priority) {
      c10::SetCPUAllocator(traced, static_cast<uint8_t>(priority));
      if (c10::GetCPUAllocator() == traced) return 0;
    }
    g_base = nullptr;
    std::snprintf(message, message_size, "torch refused to replace the CPU allocator");
  } catch (const std::exception& error) {
    std::snprintf(message, message_size, "%s", error.what());
  } catch (...) {
    std::snprintf(message, message_size, "an unknown C++ exception");
  }
  return 1;
}

const pytracer_hook hook = {PYTRACER_HOOK_ABI, "cpu", &attach, nullptr, nullptr, &observe_oom};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_hook* pytracer_hook_v1(void) {
  return &hook;
}
