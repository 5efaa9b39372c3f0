#include "support/wake_signal.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
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

// The ends of a pipe: to read from, to write to. Each pipe has an inode of its own.
std::atomic<int> g_ends[2]{{-1}, {-1}};
struct stat g_pipe{};
std::atomic<uint64_t> g_watched{0};  // bits, as take_signals() gives them
std::atomic<uint64_t> g_came{0};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "used in a signal handler");
struct sigaction g_before[kSignals];  // by number - 1, for signals that have our handler
// The signals whose earlier handler the thread runs. In the thread's own block, as this_thread in
// record/thread_slot.h is: the first access to any other variable of a thread may allocate.
__thread uint64_t t_in_earlier __attribute__((tls_model("initial-exec"))) = 0;

// Where the stack was when the outermost of them was called.
__thread uintptr_t t_outermost __attribute__((tls_model("initial-exec"))) = 0;

uint64_t bit(int number) noexcept { return uint64_t{1} << (number - 1); }

bool is_ours(int end) noexcept {
  struct stat now{};
  return fstat(end, &now) == 0 && now.st_dev == g_pipe.st_dev && now.st_ino == g_pipe.st_ino;
}

void close_ends() noexcept {
  for (std::atomic<int>& end : g_ends) {
    if (is_ours(end)) close(end);
    end = -1;
  }
}

bool has_handler(const struct sigaction& action) noexcept {
  if ((action.sa_flags & SA_SIGINFO) != 0) return action.sa_sigaction != nullptr;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

void call_earlier(int number, siginfo_t* info, void* context) noexcept {
  const struct sigaction& earlier = g_before[number - 1];
  // A handler that left by siglongjmp did not come back here, and its place on the stack is free.
  const auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  if (here >= t_outermost) t_in_earlier = 0;
  // The earlier handler may itself call the one that it found, which is this one.
  if (!has_handler(earlier) || (t_in_earlier & bit(number)) != 0) return;
  if ((earlier.sa_flags & SA_RESETHAND) != 0) {  // as the kernel does: it is called once
    struct sigaction none{};
    none.sa_handler = SIG_DFL;
    sigaction(number, &none, nullptr);
  }
  if (t_in_earlier == 0) t_outermost = here;
  t_in_earlier |= bit(number);
  if ((earlier.sa_flags & SA_SIGINFO) != 0) {
    earlier.sa_sigaction(number, info, context);
  } else {
    earlier.sa_handler(number);
  }
  t_in_earlier &= ~bit(number);
}

void handle(int number, siginfo_t* info, void* context) {
  const int interrupted = errno;
  if ((g_watched & bit(number)) != 0) {  // otherwise the handler was left behind or inherited
    g_came.fetch_or(bit(number));
    wake();
  }
  errno = interrupted;
  call_earlier(number, info, context);
  errno = interrupted;
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &handle;
}

void reset_after_fork() noexcept {
  close_ends();
  g_watched = 0;
  g_came = 0;
}

[[noreturn]] void fail(const char* doing) {
  throw Error(std::string(doing) + " failed: " + std::strerror(errno));
}

const int g_reset_at_fork = pthread_atfork(nullptr, nullptr, &reset_after_fork);

}  // namespace

int wake_event() {
  if (g_reset_at_fork != 0) throw Error("out of memory");
  if (!has_wake_event()) {
    close_ends();  // the program may have closed one of them
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail("pipe");
    if (fstat(ends[0], &g_pipe) != 0) {
      close(ends[0]);
      close(ends[1]);
      fail("fstat");
    }
    g_ends[0] = ends[0];
    g_ends[1] = ends[1];
  }
  return g_ends[0];
}

void watch_signal(int number) {
  wake_event();
  struct sigaction now{};
  if (sigaction(number, nullptr, &now) != 0) fail("sigaction");
  if (!is_ours(now)) {
    constexpr int kOfEarlier = SA_RESTART | SA_ONSTACK | SA_NODEFER;
    struct sigaction ours{};
    ours.sa_sigaction = &handle;
    ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    if (has_handler(now)) {  // it runs under the conditions that it asked for
      ours.sa_mask = now.sa_mask;
      ours.sa_flags = SA_SIGINFO | (now.sa_flags & kOfEarlier);
    }
    g_before[number - 1] = now;
    if (sigaction(number, &ours, nullptr) != 0) fail("sigaction");
  }
  g_watched.fetch_or(bit(number));
}

void unwatch_signal(int number) noexcept {
  g_watched.fetch_and(~bit(number));
  g_came.fetch_and(~bit(number));
  const struct sigaction& before = g_before[number - 1];
  const bool is_default = (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_DFL;
  if (has_signal_handler(number) && !is_default) sigaction(number, &before, nullptr);
}

bool has_signal_handler(int number) noexcept {
  struct sigaction now{};
  return sigaction(number, nullptr, &now) == 0 && is_ours(now);
}

uint64_t take_signals() noexcept {
  char wakes[256];
  // The pipe is read first: a signal that is noted after the exchange makes it readable again.
  while (has_wake_event() && read(g_ends[0], wakes, sizeof(wakes)) == sizeof(wakes)) {
  }
  return g_came.exchange(0);
}

// A pipe without a reader would raise SIGPIPE.
bool has_wake_event() noexcept { return is_ours(g_ends[0]) && is_ours(g_ends[1]); }

void wake() noexcept {
  if (!has_wake_event()) return;
  [[maybe_unused]] const ssize_t size = write(g_ends[1], "", 1);  // a full pipe is readable already
}

}  // namespace pytracer
