// The Watch that asks Python: for signals, and for the memory that the work may take.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <string>
#include <utility>

#include "reading/read_error.h"
#include "reading/watch.h"
#include "support/python/gil.h"

namespace pytracer::reading {

class PythonWatch final : public Watch {
 public:
  // `scope` is that of the call that does the work. `allowed_bytes()` returns how much memory the work
  // may take; see update_bound().
  explicit PythonWatch(const GilScope& scope, pybind11::object allowed_bytes = pybind11::none())
      : scope_(scope), allowed_bytes_(std::move(allowed_bytes)) {}

  // At most every kPause, lets Python handle signals and other threads run. With or without the GIL.
  void check_signals() override {
    if (!scope_ || Clock::now() < next_) return;
    const pybind11::gil_scoped_acquire gil;
    { const pybind11::gil_scoped_release others_run; }
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    next_ = Clock::now() + kPause;
  }
  void check_memory(uint64_t bytes) override {
    if (bytes <= allowed_) return;
    const std::string allowed = std::to_string(allowed_);
    throw ReadError(ReadError::Kind::too_large, "more than " + allowed + " bytes of memory");
  }
  // Asks Python for the bound on memory, which grows with the bytes that were read. With the GIL.
  void update_bound() { allowed_ = allowed_bytes_().cast<uint64_t>(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kPause{20};

  const GilScope& scope_;
  pybind11::object allowed_bytes_;
  uint64_t allowed_ = 0;
  Clock::time_point next_;
};

}  // namespace pytracer::reading
