// How the bindings release the GIL.
//
// 1. Nobody waits for the control lock (session/registry.h) with the GIL: its holder may wait for
//    the allocator's lock, and the holder of that one for the GIL.
// 2. Once the interpreter is about to exit, no thread of ours asks for the GIL any more: a thread
//    that asked then would be ended in the middle of a C++ destructor, which ends the process.
// 3. Each extension module has a copy of this state, and has to call close() at exit.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace pytracer {

// Counts the scopes whose thread will ask for the GIL.
class GilScopes {
 public:
  // Any thread, with or without the GIL. False: the interpreter exits, do without the GIL.
  static bool begin() noexcept;
  static void end() noexcept;

  // With the GIL. No scope begins from now on. Returns when those that began have ended, or after a
  // minute (a file system may hang).
  static void close();

  // Once. A forked child has no other thread, so it keeps the count of the thread that forked alone.
  static void watch_forks();
};

// A scope in which the thread may give the GIL up and ask for it again, as Python code does.
class GilScope {
 public:
  GilScope() : begun_(GilScopes::begin()) {}
  ~GilScope() {
    if (begun_) GilScopes::end();
  }
  GilScope(const GilScope&) = delete;
  GilScope& operator=(const GilScope&) = delete;

  // False: the interpreter exits. The thread has to keep the GIL, and must not run Python code.
  explicit operator bool() const noexcept { return begun_; }

 private:
  const bool begun_;
};

// Releases the GIL for a scope; keeps it once the interpreter is about to exit.
class OutsideGil {
 public:
  OutsideGil() {
    if (scope_) release_.emplace();
  }
  OutsideGil(const OutsideGil&) = delete;
  OutsideGil& operator=(const OutsideGil&) = delete;

 private:
  const GilScope scope_;  // ends after the GIL is back
  std::optional<pybind11::gil_scoped_release> release_;
};

template <class Work>
auto outside_gil(Work work) {
  OutsideGil outside;
  return work();
}

}  // namespace pytracer
