#include "support/python/gil.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace pytracer {

namespace {

std::atomic<bool> g_closed{false};
std::atomic<int> g_scopes{0};
// In the thread's own block: the first access to any other variable of a thread may allocate, and a
// forked child reads it.
__thread int t_scopes __attribute__((tls_model("initial-exec"))) = 0;

}  // namespace

bool GilScopes::begin() noexcept {
  ++g_scopes;
  ++t_scopes;
  if (!g_closed) return true;
  end();
  return false;
}

void GilScopes::end() noexcept {
  --g_scopes;
  --t_scopes;
}

void GilScopes::close() {
  g_closed = true;
  pybind11::gil_scoped_release release;
  for (int wait = 0; g_scopes > 0 && wait < 60'000; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void GilScopes::watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { g_scopes = t_scopes; });
}

}  // namespace pytracer
