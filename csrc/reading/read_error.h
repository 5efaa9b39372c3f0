// What is wrong with a file. Becomes pytracer.errors.PytracerError, which names the file.
#pragma once

#include <stdexcept>
#include <string>

namespace pytracer::reading {

class ReadError : public std::runtime_error {
 public:
  enum class Kind {
    cut_short,       // it ends too early
    damaged,         // it breaks the format's rules
    refused,         // it asks for what a snapshot never holds
    not_a_snapshot,  // a pickle of something else
  };
  ReadError(Kind which, const std::string& what) : std::runtime_error(what), kind(which) {}
  const Kind kind;
};

[[noreturn]] inline void damaged(const std::string& what) {
  throw ReadError(ReadError::Kind::damaged, what);
}

}  // namespace pytracer::reading
