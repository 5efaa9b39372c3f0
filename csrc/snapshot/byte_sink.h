// The destination of a snapshot's bytes.
#pragma once

#include <cstddef>

namespace pytracer {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(const char* data, size_t size) = 0;
  virtual bool can_restart() const { return true; }
  virtual void restart() = 0;  // drops everything that was written; only if can_restart()
};

}  // namespace pytracer
