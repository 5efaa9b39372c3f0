// What a thread's slot keeps for ForwardStacks.
#pragma once

#include <atomic>
#include <cstdint>

namespace pytracer {

struct NodeTable;

struct ForwardCursor {
  std::atomic<NodeTable*> table{nullptr};  // written by this thread alone; others only compare it
  uint64_t thread = 0;  // torch's number of the thread at its last allocation
  uint64_t next = 0;    // the number of its next node then
  uint64_t period = 0;  // ForwardStacks' period then
  // The last allocation that a node made, and the id that it got.
  struct Last {
    const char* node_type = nullptr;
    uint64_t thread = 0, sequence = 0, seed = 0;
    uint32_t own = 0, id = 0;
    uint32_t parameter = 0;
    uint32_t forward = 0;  // to pass on to nodes that the node makes
    uint16_t phase = 0;      // as `forward`
    bool is_exact = false;
  } last;
  // The last free, and the id that it got.
  struct LastFree {
    const char* node_type = nullptr;
    uint64_t seed = 0;
    uint32_t own = 0, id = 0;
  } last_free;

  // While no thread uses the slot.
  void reset() noexcept {
    table.store(nullptr, std::memory_order_relaxed);
    thread = next = period = 0;
    last = {};
    last_free = {};
  }
};

}  // namespace pytracer
