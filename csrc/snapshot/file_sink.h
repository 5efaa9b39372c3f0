// Writes a file that is either complete or absent.
//
// 1. Bytes go to a hidden file of a unique name in the same directory; commit() renames it.
// 2. Without commit() the destructor removes the hidden file. After kill -9 the hidden file stays,
//    but never under the final name.
// 3. Every error is an IoError that names the final path.
#pragma once

#include <string>

#include "snapshot/byte_sink.h"

namespace pytracer {

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
  [[noreturn]] void fail(int code, const char* operation) const;

  const std::string path_;
  std::string temporary_;
  int file_ = -1;
};

}  // namespace pytracer
