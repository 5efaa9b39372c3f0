#include "snapshot/file_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "record/clock.h"
#include "support/error.h"

namespace pytracer {

FileSink::FileSink(const std::string& path) : path_(path) {
  const size_t slash = path.rfind('/');
  const size_t name = slash == std::string::npos ? 0 : slash + 1;
  for (int attempt = 0; attempt < 16 && file_ < 0; ++attempt) {
    // On a shared file system another host may use the same pid; O_EXCL detects that.
    char hidden[64];
    std::snprintf(hidden, sizeof(hidden), ".pytracer-%d-%llx.tmp", static_cast<int>(getpid()),
                  static_cast<unsigned long long>(now_ticks()));
    temporary_ = path.substr(0, name) + hidden;
    file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST && errno != EINTR) break;
  }
  if (file_ < 0) fail(errno, "creating");
}

FileSink::~FileSink() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void FileSink::write(const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file_, data, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(errno, "writing");
    }
    data += written;
    size -= static_cast<size_t>(written);
  }
}

void FileSink::restart() {
  if (ftruncate(file_, 0) != 0 || lseek(file_, 0, SEEK_SET) != 0) fail(errno, "writing");
}

void FileSink::commit() {
  // Flush first, so that even a crash of the machine leaves no empty file under the final name.
  if (fdatasync(file_) != 0 && errno != EINVAL) fail(errno, "writing");
  const int file = file_;
  file_ = -1;
  if (close(file) != 0 && errno != EINTR) fail(errno, "writing");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno, "renaming to");
  temporary_.clear();
}

void FileSink::fail(int code, const char* operation) const {
  throw IoError(code, operation, path_);
}

}  // namespace pytracer
