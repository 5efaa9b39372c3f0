#include "snapshot/sinks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "support/error.h"

namespace pytracer {

FileSink::FileSink(int file, std::string path) : file_(file), path_(std::move(path)) {
  struct stat info;
  if (fstat(file_, &info) != 0) fail();
  const off_t position = lseek(file_, 0, SEEK_CUR);
  const bool is_at_end = S_ISREG(info.st_mode) && position == info.st_size;
  if (is_at_end && (fcntl(file_, F_GETFL) & O_APPEND) == 0) begin_ = position;
}

void FileSink::write(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file_, data, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail();
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
}

void FileSink::restart() {
  if (ftruncate(file_, begin_) != 0 || lseek(file_, begin_, SEEK_SET) != begin_) fail();
}

void FileSink::fail() const { throw IoError(errno, "writing the snapshot failed", path_); }

}  // namespace pytracer
