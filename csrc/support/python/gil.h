// How the bindings release the GIL.
//
// 1. Nobody waits for the control lock (session/registry.h) with the GIL: its holder may wait for
//    the allocator's lock, and the holder of that one for the GIL.
// 2. Once the interpreter is about to exit, no thread of ours asks for the GIL any more: a thread
//    that asked then would be ended in the middle of a C++ destructor, which ends the process.
// 3. Each extension module has a copy of this state, and has to call close() at exit.
#pragma once

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

namespace pytracer {

// A scope in which the thread may give the GIL up and ask for it again, as Python code does. Any thread, with or
// without the GIL.
class GilScope {
 public:
  GilScope() noexcept {
    ++open_;
    ++t_open_;
    if (is_closed_) end();
  }
  ~GilScope() {
    if (begun_) end();
  }
  GilScope(GilScope&&) = delete;

  // False: the interpreter exits. The thread has to keep the GIL, and must not run Python code.
  explicit operator bool() const noexcept { return begun_; }

  // With the GIL. No scope begins from now on. Returns when those that began have ended, or after a
  // minute (a file system may hang).
  static void close() {
    is_closed_ = true;
    pybind11::gil_scoped_release release;
    for (int wait = 0; open_ > 0 && wait < 60'000; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Once. A forked child has no other thread, so it keeps the count of the thread that forked alone.
  static void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] { open_ = t_open_; });
  }

 private:
  void end() noexcept {
    --open_;
    --t_open_;
    begun_ = false;
  }
  bool begun_ = true;
  static inline std::atomic<bool> is_closed_{false};
  static inline std::atomic<int> open_{0};
  // In the thread's own block: the first access to any other variable of a thread may allocate, and a
  // forked child reads it.
  static inline __thread int t_open_ __attribute__((tls_model("initial-exec"))) = 0;
};

// Releases the GIL for a scope; keeps it once the interpreter is about to exit.
class OutsideGil {
 public:
  OutsideGil() {
    if (scope_) release_.emplace();
  }

 private:
  const GilScope scope_;  // ends after the GIL is back
  std::optional<pybind11::gil_scoped_release> release_;
};

template <class Work>
auto outside_gil(Work work) {
  OutsideGil outside;
  return work();
}

// UTF-8, which may have lone surrogates, as a Python string.
inline pybind11::str to_str(std::string_view utf8) {
  PyObject* text = PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "surrogatepass");
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

}  // namespace pytracer
