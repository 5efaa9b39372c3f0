// What ends the work on a file before its end.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace pytracer::reading {

// Why a file cannot be read. Becomes pytracer.errors.PytracerError, which names the file.
class ReadError : public std::runtime_error {
 public:
  enum class Kind {    // kKindNames in python/module.cpp has them in the same order
    truncated,       // the file ends too early
    damaged,         // the file breaks the format's rules
    refused,         // the file asks for something that a snapshot never holds
    not_a_snapshot,  // the file is a pickle of something else
    not_a_pickle,    // the file does not begin as one
    too_large,       // reading takes more memory than the file's size allows
  };
  ReadError(Kind which, const std::string& what) : std::runtime_error(what), kind(which) {}
  const Kind kind;
};

[[noreturn]] inline void damaged(const std::string& what) {
  throw ReadError(ReadError::Kind::damaged, what);
}

[[noreturn]] inline void wrong_type(const char* what) {
  damaged(std::string(what) + " has a wrong type");
}

// Ends the work on a file early: when a signal arrived, or when the work takes too much memory.
//
// 1. The work asks at least every kInterval small steps. A check that ends the work throws.
// 2. This class never ends the work. python/bindings.h derives the class that asks Python.
// 3. One thread.
class Watch {
 public:
  static constexpr uint64_t kInterval = 1024;

  virtual ~Watch() = default;
  virtual void check_signals() {}
  // `bytes` is all memory that the work holds.
  virtual void check_memory(uint64_t /*bytes*/) {}

  // Must be called in each step of a loop.
  void tick() {
    if (++ticks_ % kInterval == 0) check_signals();
  }

 private:
  uint64_t ticks_ = 0;
};

}  // namespace pytracer::reading
