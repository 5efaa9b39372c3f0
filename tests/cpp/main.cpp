#include <cstring>
#include <vector>

#include "check.h"

namespace {
struct Test {
  const char* name;
  void (*body)();
};
std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
}  // namespace

void register_test(const char* name, void (*body)()) { tests().push_back({name, body}); }

// core_tests [NAME]: runs all tests, or the test of that name.
int main(int argc, char** argv) {
  int passed = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strcmp(argv[1], test.name) != 0) continue;
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.body();
    ++passed;
  }
  std::printf("%d passed\n", passed);
  return passed > 0 ? 0 : 1;
}
