#include "snapshot/pickle_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "check.h"
#include "snapshot/file_sink.h"
#include "snapshot/memory_sink.h"
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

TEST(a_file_appears_complete_or_not_at_all) {
  char directory[] = "/tmp/pytracer-test-XXXXXX";
  CHECK(mkdtemp(directory) != nullptr);
  const std::string path = std::string(directory) + "/file";
  struct stat info;
  {
    FileSink sink(path);
    sink.write("lost", 4);
    CHECK(stat(path.c_str(), &info) != 0);
  }
  CHECK(stat(path.c_str(), &info) != 0);
  {
    FileSink sink(path);
    sink.write("wrong", 5);
    sink.restart();
    sink.write("kept", 4);
    sink.commit();
  }
  CHECK(stat(path.c_str(), &info) == 0 && info.st_size == 4);
  CHECK(unlink(path.c_str()) == 0);
  CHECK(rmdir(directory) == 0);  // no other file was left in it
  bool refused = false;
  try {
    FileSink sink(path);
  } catch (const IoError& error) {
    refused = error.errno_code == ENOENT && error.path == path;
  }
  CHECK(refused);
}
