#include "snapshot/pickle_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "support/error.h"

namespace pytracer {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pickle arguments are little-endian");

PickleWriter::PickleWriter(ByteSink& sink) : sink_(sink), buffer_(new char[kBufferSize]) {}

void PickleWriter::end() {
  put(".", 1);
  flush();
}

void PickleWriter::flush() {
  sink_.write(buffer_.get(), used_);
  used_ = 0;
}

void PickleWriter::put_long(const char* data, size_t size) {
  if (used_ + size > kBufferSize) flush();
  if (size > kBufferSize) {
    sink_.write(data, size);
    return;
  }
  std::memcpy(&buffer_[used_], data, size);
  used_ += size;
}

void PickleWriter::real(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  put_opcode('G', __builtin_bswap64(bits));  // BINFLOAT: big-endian
}

void PickleWriter::string(std::string_view text) {
  if (text.size() <= 0xff) {
    put_opcode('\x8c', static_cast<uint8_t>(text.size()));  // SHORT_BINUNICODE
  } else {
    put_opcode('X', static_cast<uint32_t>(text.size()));  // BINUNICODE
  }
  put_long(text.data(), text.size());
}

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
