#include "support/wake_signal.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.h"

using namespace pytracer;

namespace {

std::atomic<int> g_users{0};

bool readable(int timeout_ms = 0) {
  pollfd event{wake_event(), POLLIN, 0};
  return poll(&event, 1, timeout_ms) == 1;
}

void users(int) { ++g_users; }

void set_handler(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
}

constexpr uint64_t kUsr1 = uint64_t{1} << (SIGUSR1 - 1);

}  // namespace

TEST(signals_wake_and_the_earlier_handler_is_restored) {
  // GIVEN a user's handler, and a watched signal
  set_handler(&users);
  watch_signal(SIGUSR1);
  watch_signal(SIGUSR1);
  CHECK(!readable());
  // WHEN the signal comes many times
  for (int i = 0; i < 100; ++i) raise(SIGUSR1);
  // THEN there is one wake-up
  CHECK(readable());
  CHECK(take_signals() == kUsr1);
  CHECK(!readable());
  CHECK(take_signals() == 0);
  CHECK(g_users == 0);
  // WHEN a signal comes just before the end, THEN the next watch does not see it
  raise(SIGUSR1);
  unwatch_signal(SIGUSR1);
  watch_signal(SIGUSR1);
  CHECK(take_signals() == 0);
  // AND after the end the user's handler is called
  unwatch_signal(SIGUSR1);
  unwatch_signal(SIGUSR1);
  raise(SIGUSR1);
  CHECK(g_users == 1);
  // WHEN the user's handler replaces the recorder's, THEN it is kept
  watch_signal(SIGUSR1);
  set_handler(SIG_IGN);
  unwatch_signal(SIGUSR1);
  struct sigaction now{};
  CHECK(sigaction(SIGUSR1, nullptr, &now) == 0 && now.sa_handler == SIG_IGN);
}

TEST(a_signal_after_the_watch_does_nothing) {
  // GIVEN no handler, WHEN a signal comes after the watch, THEN the process continues
  set_handler(SIG_DFL);
  watch_signal(SIGUSR1);
  unwatch_signal(SIGUSR1);
  raise(SIGUSR1);
  CHECK(!readable());
  // AND the next watch does not see that signal
  watch_signal(SIGUSR1);
  CHECK(take_signals() == 0);
  raise(SIGUSR1);
  CHECK(take_signals() == kUsr1);
  unwatch_signal(SIGUSR1);
}

TEST(no_signal_is_lost_while_they_are_taken) {
  // GIVEN a thread that raises a signal after each signal that was taken
  watch_signal(SIGUSR1);
  std::atomic<int> taken{0};
  std::thread sender([&] {
    for (int sent = 0; sent < 1000; ++sent) {
      while (taken < sent) std::this_thread::yield();
      raise(SIGUSR1);
    }
  });
  // WHEN the signals are waited for, THEN each arrives
  while (taken < 1000) {
    CHECK(readable(10'000));
    if (take_signals() == kUsr1) ++taken;
  }
  sender.join();
  unwatch_signal(SIGUSR1);
}

TEST(a_forked_child_watches_by_itself) {
  // GIVEN a parent that watches a signal
  watch_signal(SIGUSR1);
  const pid_t child = fork();
  if (child == 0) {
    // WHEN the signal comes to the child, THEN the child does not react, as without a watch
    raise(SIGUSR1);
    if (take_signals() != 0 || readable()) _exit(1);
    // AND the child can watch too
    watch_signal(SIGUSR1);
    raise(SIGUSR1);
    if (!readable() || take_signals() != kUsr1) _exit(2);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  // THEN the parent receives nothing
  CHECK(!readable() && take_signals() == 0);
  raise(SIGUSR1);
  CHECK(take_signals() == kUsr1);
  unwatch_signal(SIGUSR1);
}
