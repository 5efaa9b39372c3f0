#include "support/wake_signal.h"

#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "support/error.h"

namespace pytracer {

namespace {

constexpr int kSignals = 64;

std::atomic<int> g_event{-1};
struct stat g_event_file{};  // identifies the eventfd
std::atomic<uint64_t> g_watched{0};  // bits, as take_signals() gives them
std::atomic<uint64_t> g_came{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "used in a signal handler");
struct sigaction g_before[kSignals];  // by number - 1, for signals that have our handler

uint64_t bit(int number) noexcept { return uint64_t{1} << (number - 1); }

void handle(int number) {
  if ((g_watched & bit(number)) == 0) return;  // the handler was left behind or inherited
  const int interrupted = errno;
  g_came.fetch_or(bit(number));
  wake();
  errno = interrupted;
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == &handle;
}

void reset_after_fork() noexcept {
  if (has_wake_event()) close(g_event);
  g_event = -1;
  g_watched = 0;
  g_came = 0;
}

[[noreturn]] void fail(const char* doing) {
  throw Error(std::string(doing) + " failed: " + std::strerror(errno));
}

const int g_at_fork = pthread_atfork(nullptr, nullptr, &reset_after_fork);

}  // namespace

int wake_event() {
  if (g_at_fork != 0) throw Error("out of memory");
  if (!has_wake_event()) {
    const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event < 0 || fstat(event, &g_event_file) != 0) fail("eventfd");
    g_event = event;
  }
  return g_event;
}

void watch_signal(int number) {
  wake_event();
  struct sigaction now{};
  if (sigaction(number, nullptr, &now) != 0) fail("sigaction");
  if (!is_ours(now)) {
    struct sigaction ours{};
    ours.sa_handler = &handle;
    ours.sa_flags = SA_RESTART | SA_ONSTACK;
    g_before[number - 1] = now;
    if (sigaction(number, &ours, nullptr) != 0) fail("sigaction");
  }
  g_watched.fetch_or(bit(number));
}

void unwatch_signal(int number) noexcept {
  g_watched.fetch_and(~bit(number));
  g_came.fetch_and(~bit(number));
  struct sigaction now{};
  const struct sigaction& before = g_before[number - 1];
  if (sigaction(number, nullptr, &now) == 0 && is_ours(now) && before.sa_handler != SIG_DFL) {
    sigaction(number, &before, nullptr);
  }
}

uint64_t take_signals() noexcept {
  uint64_t times = 0;
  // The event is read first: a signal that is noted after the exchange makes it readable again.
  if (has_wake_event()) {
    [[maybe_unused]] const ssize_t size = read(g_event, &times, sizeof(times));
  }
  return g_came.exchange(0);
}

bool has_wake_event() noexcept {
  struct stat now{};
  return fstat(g_event, &now) == 0 && now.st_dev == g_event_file.st_dev &&
         now.st_ino == g_event_file.st_ino;
}

void wake() noexcept {
  const uint64_t once = 1;
  if (!has_wake_event()) return;
  [[maybe_unused]] const ssize_t size = write(g_event, &once, sizeof(once));
}

}  // namespace pytracer
