// The core's exceptions, one family. python/module.cpp translates them. Never thrown in a hook.
#pragma once

#include <unistd.h>

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

// The name of an open file, as far as the kernel knows it.
inline std::string name_of_file(int descriptor) {
  char name[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = readlink(link.c_str(), name, sizeof(name));
  return size > 0 ? std::string(name, static_cast<size_t>(size)) : std::string();
}

// A system call on a file failed. Becomes OSError with this errno and path. `failed`: what did, as in "cannot
// read the box".
class IoError : public Error {
 public:
  IoError(int code, const std::string& failed, const std::string& file)
      : Error(failed), errno_code(code), path(file) {}
  const int errno_code;
  const std::string path;
};

}  // namespace pytracer
