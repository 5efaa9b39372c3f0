// Keeps a snapshot's bytes in memory.
#pragma once

#include <string>

#include "snapshot/byte_sink.h"

namespace pytracer {

class MemorySink final : public ByteSink {
 public:
  void write(const char* data, size_t size) override { bytes.append(data, size); }
  void restart() override { bytes.clear(); }
  std::string bytes;
};

}  // namespace pytracer
