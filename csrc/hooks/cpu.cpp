// The CPU hook: a c10 allocator that delegates to the allocator it replaces, the base, and reports
// every allocation and free. Compiled on the user's machine against the running torch's headers.
//
// 1. Every DataPtr that it returns has ctx == data and deleter == raw_deleter(), because parts of
//    torch use the raw interface (raw_allocate / raw_deallocate).
// 2. An allocation is reported after the base's call, a free before the base's deleter. Otherwise
//    another thread could reuse the address first, and the two events would swap.
// 3. The hook cannot be removed: its blocks carry its deleter for as long as they live, past static
//    destruction too. All state is therefore leaked on purpose.
// 4. The CPU allocator has no lock of its own: many threads call `record` at once.
// 5. An exception of the base means that memory ran out. It is reported and then thrown on.
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include "guarded.h"

namespace {

pytracer_record_fn g_record = nullptr;
pytracer_oom_fn g_oom_callback = nullptr;
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
  const auto page_size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return pages > 0 ? static_cast<uint64_t>(pages) * page_size : 0;
}

void report_oom(size_t size) noexcept {
  const uint64_t free_size = bytes_of_pages(_SC_AVPHYS_PAGES);
  report(PYTRACER_OOM, free_size, size);
  g_oom_callback(size, bytes_of_pages(_SC_PHYS_PAGES), free_size);
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
    // A block of an unusual kind keeps its own context and deleter, and is not traced.
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

TracedAllocator* g_traced = nullptr;

void observe_oom(pytracer_oom_fn callback) { g_oom_callback = callback; }

int32_t attach(pytracer_record_fn record, const uint32_t* enabled, char* message, size_t size) {
  return guarded(message, size, [&]() -> int32_t {
    if (g_traced == nullptr) g_traced = new TracedAllocator;
    TracedAllocator* const traced = g_traced;
    if (c10::GetCPUAllocator() == traced) return PYTRACER_DONE;
    // The same base is allowed: a process that was forked during attach() continues here.
    if (g_base != nullptr && g_base != c10::GetCPUAllocator()) {
      // Wrapping an allocator that wraps ours would recurse.
      return failed(message, size, "another library replaced the CPU allocator after pytracer attached to it");
    }
    c10::Allocator* base = c10::GetCPUAllocator();
    c10::DeleterFnPtr base_delete = base->raw_deleter();
    if (base_delete == nullptr) {
      return failed(message, size, "the CPU allocator in place has no raw deleter, so it cannot be wrapped");
    }
    g_record = record;
    g_enabled = enabled;
    g_base = base;
    g_base_delete = base_delete;
    // torch accepts a priority that is not below the present one. The smallest such priority lets
    // other libraries replace the allocator later.
    for (int priority = 0; priority <= 255; ++priority) {
      c10::SetCPUAllocator(traced, static_cast<uint8_t>(priority));
      if (c10::GetCPUAllocator() == traced) return PYTRACER_DONE;
    }
    g_base = nullptr;
    return failed(message, size, "torch refused to replace the CPU allocator");
  });
}

const pytracer_hook hook = {PYTRACER_HOOK_ABI, "cpu", &attach, nullptr, nullptr, &observe_oom,
                            nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_hook* pytracer_hook_v1(void) {
  return &hook;
}
