// How a hook says why it cannot do what the recorder asks for.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>

#include "hook_abi.h"

namespace {

inline int32_t failed(char* message, size_t size, const char* reason) {
  std::snprintf(message, size, "%s", reason);
  return PYTRACER_FAILED;
}

// Returns the result of `work`; if it throws, PYTRACER_FAILED with the reason in `message`.
template <class Work>
int32_t guarded(char* message, size_t size, Work work) noexcept {
  try {
    return work();
  } catch (const std::exception& error) {
    const auto length = static_cast<int>(std::strcspn(error.what(), "\n"));  // a C++ stack trace follows
    std::snprintf(message, size, "%.*s", length, error.what());
    return PYTRACER_FAILED;
  } catch (...) {
    return failed(message, size, "an unknown C++ exception");
  }
}

}  // namespace
