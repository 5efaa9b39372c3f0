// Why a file cannot be read. Becomes pytracer.errors.PytracerError, which names the file.
#pragma once

#include <stdexcept>
#include <string>

namespace pytracer::reading {

class ReadError : public std::runtime_error {
 public:
  enum class Kind {    // kKindNames in python/read.cpp has them in the same order
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

}  // namespace pytracer::reading
