#include "snapshot/pickle_writer.h"

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

}  // namespace pytracer
