// Writes to an open file, from where its position is.
//
// 1. The file stays open, and belongs to the caller. pytracer/atomic_file.py opens it and gives it its
//    name.
// 2. Every error is an IoError that names the path.
#pragma once

#include <sys/types.h>

#include <string>

#include "snapshot/byte_sink.h"

namespace pytracer {

class FileSink final : public ByteSink {
 public:
  FileSink(int file, std::string path);

  void write(const char* data, size_t size) override;
  bool can_restart() const override { return begin_ >= 0; }
  void restart() override;

 private:
  [[noreturn]] void fail() const;

  const int file_;
  const std::string path_;
  off_t begin_ = -1;  // -1: what follows the position must stay, or the file has no positions
};

}  // namespace pytracer
