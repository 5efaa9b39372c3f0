#include "snapshot/pickle_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "check.h"
#include "support/error.h"

using namespace pytracer;

namespace {
std::string pickled(int64_t value) {
  MemorySink sink;
  PickleWriter out(sink);
  out.integer(value);
  out.flush();
  return sink.bytes;
}
std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text.push_back(static_cast<char>(value));
  return text;
}
}  // namespace

TEST(pickle_integers_take_the_shortest_opcode) {
  CHECK(pickled(0) == bytes({'K', 0}));
  CHECK(pickled(255) == bytes({'K', 255}));
  CHECK(pickled(256) == bytes({'M', 0, 1}));
  CHECK(pickled(65536) == bytes({'J', 0, 0, 1, 0}));
  CHECK(pickled(-1) == bytes({'J', 255, 255, 255, 255}));
  CHECK(pickled(1ll << 31) == bytes({0x8a, 5, 0, 0, 0, 0x80, 0}));
  CHECK(pickled((1ll << 31) + (1ll << 39)) == bytes({0x8a, 6, 0, 0, 0, 0x80, 0x80, 0}));
  CHECK(pickled(INT64_MAX) == bytes({0x8a, 8, 255, 255, 255, 255, 255, 255, 255, 127}));
  CHECK(pickled(INT64_MIN) == bytes({0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 0x80}));
}

TEST(pickle_strings_longer_than_the_buffer) {
  MemorySink sink;
  PickleWriter out(sink);
  const std::string text(1'000'000, 'x');
  out.string("a");
  out.string(text);
  out.string("b");
  out.end();
  CHECK(sink.bytes.size() == 3 + 5 + text.size() + 3 + 1);
  CHECK(sink.bytes.substr(sink.bytes.size() - 4) == std::string("\x8c\x01" "b."));
}

TEST(a_file_is_written_from_its_position) {
  char path[] = "/tmp/pytracer-test-XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0 && unlink(path) == 0);
  CHECK(write(file, "before ", 7) == 7);
  const auto content = [&] {
    char bytes[64];
    const ssize_t size = pread(file, bytes, sizeof(bytes), 0);
    return std::string(bytes, static_cast<size_t>(size));
  };
  FileSink sink(file, path);
  CHECK(sink.can_restart());
  sink.write("wrong and longer", 16);
  sink.restart();
  sink.write("kept", 4);
  CHECK(content() == "before kept");
  // What follows the position stays, so nothing may be dropped there.
  CHECK(lseek(file, 0, SEEK_SET) == 0);
  FileSink over(file, path);
  CHECK(!over.can_restart());
  over.write("BEFORE", 6);
  CHECK(content() == "BEFORE kept");
  CHECK(close(file) == 0);
}

TEST(a_pipe_is_written_once) {
  int pipe[2];
  CHECK(pipe2(pipe, O_CLOEXEC) == 0);
  FileSink sink(pipe[1], "the path");
  CHECK(!sink.can_restart());
  sink.write("kept", 4);
  char bytes[8];
  CHECK(read(pipe[0], bytes, sizeof(bytes)) == 4 && std::string(bytes, 4) == "kept");
  CHECK(close(pipe[1]) == 0);
  bool refused = false;
  try {
    sink.write("x", 1);
  } catch (const IoError& error) {
    refused = error.errno_code == EBADF && error.path == "the path";
  }
  CHECK(refused);
  CHECK(close(pipe[0]) == 0);
}
