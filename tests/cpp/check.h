// A minimal test harness: TEST(name) { CHECK(condition); } in any file.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

// Returns how much a statistical test does: a short form in `make test`, a long one in `make test-long`.
inline int amount(int short_form, int long_form) {
  const char* is_long = std::getenv("LONG_TESTS");
  return is_long != nullptr && std::strcmp(is_long, "1") == 0 ? long_form : short_form;
}

void register_test(const char* name, void (*body)());

#define TEST(name)                                                               \
  static void name();                                                            \
  static const bool registered_##name = (register_test(#name, &name), true);     \
  static void name()

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                              \
    }                                                                            \
  } while (false)
