// Tells when a walk first meets a code object, which costs nothing but at a code object that is new.
#pragma once

#include <atomic>

namespace pytracer {

class CodeWatch {
 public:
  // With the GIL. `seen` is called once, on any thread, in a hook and with locks: it must not wait, nor
  // need the GIL. Replaces the watch before.
  static void start(const void* code, void (*seen)() noexcept) noexcept {
    seen_.store(seen, std::memory_order_relaxed);
    code_.store(code, std::memory_order_release);
  }
  static void meet(const void* code) noexcept {
    if (code_.load(std::memory_order_acquire) != code) return;
    if (code_.exchange(nullptr, std::memory_order_acq_rel) == code) {
      seen_.load(std::memory_order_relaxed)();
    }
  }

 private:
  static inline std::atomic<const void*> code_{nullptr};
  static inline std::atomic<void (*)() noexcept> seen_{nullptr};
};

}  // namespace pytracer
