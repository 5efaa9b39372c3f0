// How a hook says why it cannot do what the recorder asks for.
#pragma once

#include <cstdio>
#include <exception>
#include <string>

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
    const std::string text = error.what();  // torch appends a C++ stack trace from line 2 on
    return failed(message, size, text.substr(0, text.find('\n')).c_str());
  } catch (...) {
    return failed(message, size, "an unknown C++ exception");
  }
}

}  // namespace
