// A minimal test harness: TEST(name) { CHECK(condition); } in any file.
#pragma once

#include <cstdio>
#include <cstdlib>

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
