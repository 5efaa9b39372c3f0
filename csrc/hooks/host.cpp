// The host hook: an allocator of pinned memory that delegates to torch's own, the base, and reports
// what becomes of its blocks. torch's allocator of pinned memory takes no tracker (2.8 to 2.15).
//
// 1. A DataPtr keeps its context, which torch uses to find the block; only its deleter changes.
// 2. Every virtual function of the base is forwarded. A torch whose interface has a function that
//    this file does not know is refused: the function would be lost to the program.
// 3. The hook cannot be removed: its blocks carry its deleter for as long as they live, past static
//    destruction too. All state is therefore leaked on purpose.
// 4. g_lock is held for the table and the report, never for a call of the base that allocates or
//    frees. Under it, the base is only asked for its segments. It is a leaf for Python: nothing waits
//    for the GIL under it.
// 5. Nothing is reported in a forked child, where the lock may have been held by another thread.
#include <ATen/core/CachingHostAllocator.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <new>
#include <vector>

#include "guarded.h"
#include "host_forwarding.h"
#include "pinned_memory.h"
#include "trace_entry.h"

namespace c10::CachingAllocator {
class AcceleratorAllocatorConfig;  // torch 2.8 has none
}

namespace {

pytracer_record_fn g_record = nullptr;
const uint32_t* g_enabled = nullptr;
std::atomic<c10::DeleterFnPtr> g_base_delete{nullptr};
std::mutex g_lock;  // guards the next
bool g_is_child = false;

struct Report {
  void operator()(uint8_t action, uint64_t address, const PinnedSegment& segment) const noexcept {
    if (__atomic_load_n(g_enabled, __ATOMIC_ACQUIRE) == 0) return;
    pytracer_event event{};
    event.address = address;
    const bool is_block = action <= PYTRACER_FREE_COMPLETED;
    event.size = is_block ? segment.requested : segment.size;
    event.pool_high = segment.pool_high;
    event.pool_low = segment.pool_low;
    event.device = PYTRACER_HOST_DEVICE;
    event.action = action;
    g_record(&event);
  }
};

PinnedMemory<Report>& memory() {
  static auto* const memory = new PinnedMemory<Report>(Report{});
  return *memory;
}

// Runs `work` on the table. Without memory for it, the table knows less; the program goes on.
template <class Work>
void update(Work work) noexcept {
  if (g_is_child) return;
  try {
    const std::lock_guard lock(g_lock);
    work(memory());
  } catch (...) {
  }
}

// The state of the base's segments, since torch 2.15. Else nothing.
template <class Host>
constexpr bool kTellsState = has_get_segments<Host>::value;

template <class Host>
std::vector<PinnedState> states(Host& base) {
  std::vector<PinnedState> result;
  if constexpr (kTellsState<Host>) {
    for (const auto& each : base.get_segments()) {
      const auto& pool = each.owner_private_pool_id;
      result.push_back(
          {each.address, each.size, pool.first, pool.second, each.allocated, each.active});
    }
  }
  return result;
}

// A block's size and pool are in torch's own structure, whose first fields are the same for every
// type of stream.
using Block = at::HostBlock<c10::Stream>;

PYTRACER_FIELD(owning_pool_);
PYTRACER_FIELD(pinned_max_cached_size);

template <class Any>
bool describe(const Any& block, const void* data, PinnedSegment& segment) {
  if (block.ptr_ != data) return false;
  segment.size = block.size_;
  segment.context = &block;
  if constexpr (has_owning_pool_<Any>::value) {
    segment.pool_high = block.owning_pool_.first;
    segment.pool_low = block.owning_pool_.second;
  }
  return true;
}

template <class Config>
bool is_cached(uint64_t size) {
  if constexpr (has_pinned_max_cached_size<Config>::value) {
    return size <= Config::pinned_max_cached_size();
  }
  return true;
}
using c10::CachingAllocator::AcceleratorAllocatorConfig;

void delete_traced(void* context) {
  const auto address = reinterpret_cast<uint64_t>(static_cast<const Block*>(context)->ptr_);
  update([&](auto& memory) {
    memory.requested(address, context, kTellsState<at::HostAllocator>,
                     &is_cached<AcceleratorAllocatorConfig>);
  });
  g_base_delete.load(std::memory_order_relaxed)(context);
}

class TracedAllocator final : public Forwards<at::HostAllocator> {
 public:
  c10::DataPtr allocate(size_t size) override {
    c10::DataPtr block = base().allocate(size);
    const void* const data = block.get();
    const void* const context = block.get_context();
    if (data == nullptr || context == nullptr || g_is_child) return block;
    c10::DeleterFnPtr base_delete = nullptr;
    g_base_delete.compare_exchange_strong(base_delete, block.get_deleter());
    base_delete = g_base_delete.load(std::memory_order_relaxed);
    PinnedSegment segment;
    segment.requested = size;
    if (!describe(*static_cast<const Block*>(context), data, segment)) return block;
    update([&](auto& memory) {
      const auto address = reinterpret_cast<uint64_t>(data);
      if (memory.is_waiting()) memory.poll(states(base()), address, false);
      // A block of an unusual kind keeps its own deleter, and is not traced.
      if (memory.has_room() && block.compare_exchange_deleter(base_delete, &delete_traced)) {
        memory.took(address, segment);
      }
    });
    return block;
  }
  bool record_event(void* data, void* context, c10::Stream stream) override {
    const bool is_known = base().record_event(data, context, stream);
    if (is_known) update([&](auto& memory) { memory.used(reinterpret_cast<uint64_t>(data)); });
    return is_known;
  }
  void empty_cache() override {
    base().empty_cache();
    update([&](auto& memory) {
      if constexpr (kTellsState<at::HostAllocator>) {
        memory.poll(states(base()), 0, true);
      } else {
        memory.emptied();
      }
    });
  }
  // These two override functions of torch 2.15; in earlier releases nobody calls them.
  void record_external_register(void* data, size_t size) {
    if constexpr (kTellsState<at::HostAllocator>) {
      forward_register(base(), data, size);
      update([&](auto& memory) { memory.pinned(reinterpret_cast<uint64_t>(data), size); });
    }
  }
  void record_external_unregister(void* data) {
    if constexpr (kTellsState<at::HostAllocator>) {
      forward_unregister(base(), data);
      update([&](auto& memory) { memory.unpinned(reinterpret_cast<uint64_t>(data)); });
    }
  }

 private:
  template <class Host>
  static void forward_register(Host& base, void* data, size_t size) {
    base.record_external_register(data, size);
  }
  template <class Host>
  static void forward_unregister(Host& base, void* data) {
    base.record_external_unregister(data);
  }
};

void reset_in_child() {
  g_is_child = true;
  new (&g_lock) std::mutex;
}

int32_t attach(pytracer_record_fn record, const uint32_t* enabled, char* message, size_t size) {
  return guarded(message, size, [&]() -> int32_t {
    static TracedAllocator* const traced = new TracedAllocator;
    at::HostAllocator* const base = at::getHostAllocator(at::kCUDA);
    if (base == traced) return PYTRACER_DONE;
    if (base == nullptr) return failed(message, size, "torch has no allocator of pinned memory");
    if (g_record != nullptr) {
      return failed(message, size,
                    "another library replaced the allocator of pinned memory after pytracer "
                    "attached to it");
    }
    if (!forwards_all<at::HostAllocator>()) {
      return failed(message, size,
                    "the allocator of pinned memory of this torch has functions that this "
                    "pytracer does not know; install a newer pytracer");
    }
    if (pthread_atfork(nullptr, nullptr, &reset_in_child) != 0) {
      return failed(message, size, "out of memory");
    }
    g_enabled = enabled;
    g_record = record;
    TracedAllocator::set_base(base);
    for (const PinnedState& state : states(*base)) memory().seed(state);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // other threads may request at once
    // torch accepts a priority that is not below the present one.
    for (int priority = 0; priority <= 255; ++priority) {
      at::setHostAllocator(at::kCUDA, traced, static_cast<uint8_t>(priority));
      if (at::getHostAllocator(at::kCUDA) == traced) return PYTRACER_DONE;
    }
    g_record = nullptr;
    return failed(message, size, "torch refused to replace the allocator of pinned memory");
  });
}

void report_segment(uint64_t address, const PinnedSegment& known, const pytracer_state_sink& sink) {
  pytracer_segment segment{};
  segment.address = address;
  segment.pool_high = known.pool_high;
  segment.pool_low = known.pool_low;
  segment.total_size = known.size;
  segment.allocated_size = known.state == PYTRACER_ACTIVE_ALLOCATED ? known.size : 0;
  segment.active_size = known.state == PYTRACER_INACTIVE ? 0 : known.size;
  segment.requested_size = known.state == PYTRACER_INACTIVE ? 0 : known.requested;
  segment.device = PYTRACER_HOST_DEVICE;
  const pytracer_block block = {known.size, known.requested, known.state};
  segment.blocks = &block;
  segment.block_count = 1;
  sink.segment(sink.context, &segment);
}

int32_t snapshot(const pytracer_state_sink* sink, char* message, size_t size) {
  if (g_is_child) return failed(message, size, "this process was forked");
  return guarded(message, size, [&] {
    const std::lock_guard lock(g_lock);
    if (memory().is_waiting()) memory().poll(states(TracedAllocator::base()), 0, false);
    if (__atomic_load_n(g_enabled, __ATOMIC_ACQUIRE) != 0) {
      pytracer_event marker{};
      marker.device = PYTRACER_HOST_DEVICE;
      marker.action = PYTRACER_SNAPSHOT;
      g_record(&marker);
    }
    for (const auto& [address, segment] : memory().segments()) {
      report_segment(address, segment, *sink);
    }
    return PYTRACER_DONE;
  });
}

const pytracer_hook hook = {PYTRACER_HOOK_ABI, "host", &attach, nullptr, &snapshot, nullptr,
                            nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const pytracer_hook* pytracer_hook_v1(void) {
  return &hook;
}
