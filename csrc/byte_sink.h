// Where a snapshot's bytes go.
#pragma once

#include <cstddef>
#include <string>

namespace pytracer {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(const char* data, size_t size) = 0;
  virtual void restart() = 0;  // forgets what was written
};

class MemorySink final : public ByteSink {
 public:
  void write(const char* data, size_t size) override { bytes.append(data, size); }
  void restart() override { bytes.clear(); }
  std::string bytes;
};

// A file that is there whole or not at all.
//
// 1. Bytes go to a hidden file of a unique name in the same directory; commit() renames it.
// 2. Without commit(), by whatever way, the hidden file is removed (after kill -9 it stays, but
//    never under the final name).
// 3. Every error is an IoError that names the final path.
class FileSink final : public ByteSink {
 public:
  explicit FileSink(const std::string& path);
  ~FileSink() override;
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  void write(const char* data, size_t size) override;
  void restart() override;
  void commit();

 private:
  [[noreturn]] void fail(int code, const char* doing) const;

  const std::string path_;
  std::string temporary_;
  int file_ = -1;
};

}  // namespace pytracer
