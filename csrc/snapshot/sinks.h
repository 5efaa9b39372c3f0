// The destinations of a snapshot's bytes.
#pragma once

#include <sys/types.h>

#include <string>

namespace pytracer {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(const char* data, size_t size) = 0;
  virtual bool can_restart() const { return true; }
  virtual void restart() = 0;  // drops everything that was written; only if can_restart()
};

// Writes to an open file, from where its position is.
//
// 1. The file stays open, and belongs to the caller. pytracer/atomic_file.py opens it and gives it its name.
// 2. Every error is an IoError that names the path.
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

// Keeps the bytes in memory.
class MemorySink final : public ByteSink {
 public:
  void write(const char* data, size_t size) override { bytes.append(data, size); }
  void restart() override { bytes.clear(); }
  std::string bytes;
};

}  // namespace pytracer
