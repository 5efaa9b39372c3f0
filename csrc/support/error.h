// The core's exceptions, one family. python/errors.cpp translates them. Never thrown in a hook.
#pragma once

#include <stdexcept>
#include <string>

namespace pytracer {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A hook that cannot be loaded or attached. Becomes pytracer.errors.HookError.
class HookError : public Error {
 public:
  using Error::Error;
};

// A system call on a file failed. Becomes OSError with this errno and path.
class IoError : public Error {
 public:
  IoError(int code, const std::string& doing, const std::string& file)
      : Error(doing), errno_code(code), path(file) {}
  const int errno_code;
  const std::string path;
};

}  // namespace pytracer
