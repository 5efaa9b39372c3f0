#include "support/wake_signal.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>
#include <thread>

#include "check.h"
#include "threads.h"

using namespace pytracer;

namespace {

std::atomic<int> g_users{0};
sigjmp_buf g_place;

bool readable(int timeout_ms = 0) {
  pollfd event{wake_event(), POLLIN, 0};
  return poll(&event, 1, timeout_ms) == 1;
}

void users(int) { ++g_users; }

// The other end of a pipe.
int other_end(int end) {
  struct stat wanted{}, found{};
  CHECK(fstat(end, &wanted) == 0);
  for (int other = 0; other < 1024; ++other) {
    if (other != end && fstat(other, &found) == 0 && found.st_ino == wanted.st_ino &&
        found.st_dev == wanted.st_dev) {
      return other;
    }
  }
  return -1;
}

struct sigaction g_passed_to{};

void passing_on(int number, siginfo_t* info, void* context) {
  ++g_users;
  g_passed_to.sa_sigaction(number, info, context);
}

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
  // AND the user's handler was called each time
  CHECK(g_users == 100);
  // WHEN a signal comes just before the end, THEN the next watch does not see it
  raise(SIGUSR1);
  unwatch_signal(SIGUSR1);
  watch_signal(SIGUSR1);
  CHECK(take_signals() == 0);
  // AND after the end the user's handler is called
  unwatch_signal(SIGUSR1);
  unwatch_signal(SIGUSR1);
  CHECK(g_users == 101);
  raise(SIGUSR1);
  CHECK(g_users == 102);
  // WHEN the user's handler replaces the recorder's, THEN it is kept
  watch_signal(SIGUSR1);
  set_handler(SIG_IGN);
  unwatch_signal(SIGUSR1);
  struct sigaction now{};
  CHECK(sigaction(SIGUSR1, nullptr, &now) == 0 && now.sa_handler == SIG_IGN);
}

TEST(a_handler_that_replaces_ours_is_noticed_and_may_call_it) {
  // GIVEN a watched signal, whose handler the program replaces by one that calls the one before
  watch_signal(SIGUSR1);
  CHECK(has_signal_handler(SIGUSR1));
  struct sigaction calls_back{};
  calls_back.sa_sigaction = &passing_on;
  calls_back.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGUSR1, &calls_back, &g_passed_to) == 0);
  // THEN this is seen
  CHECK(!has_signal_handler(SIGUSR1));
  // WHEN the signal is watched anew, so that each of the two handlers calls the other one
  watch_signal(SIGUSR1);
  CHECK(has_signal_handler(SIGUSR1));
  const int users = g_users;
  raise(SIGUSR1);
  // THEN the program's handler runs once, and the signal has arrived
  CHECK(g_users == users + 1);
  CHECK(take_signals() == kUsr1);
  unwatch_signal(SIGUSR1);
  set_handler(SIG_IGN);
}

TEST(no_file_that_got_the_number_of_a_closed_one_is_used) {
  for (const bool closes_reader : {true, false}) {
    // GIVEN a program that closes an end of the pipe, and gives its number to an end of its own pipe
    const int event = wake_event();
    const int closed = closes_reader ? event : other_end(event);
    int own[2];
    CHECK(pipe2(own, O_NONBLOCK) == 0);
    CHECK(dup2(own[closes_reader ? 0 : 1], closed) == closed);
    CHECK(write(own[1], "mine", 4) == 4);
    // WHEN a signal is taken and the thread is woken
    CHECK(!has_wake_event());
    wake();
    take_signals();
    // THEN the program's pipe has what the program wrote
    char bytes[16];
    CHECK(read(own[0], bytes, sizeof(bytes)) == 4);
    // AND another pipe is made, which works
    CHECK(wake_event() != closed);
    wake();
    CHECK(readable());
    take_signals();
    CHECK(!readable());
    CHECK(fcntl(closed, F_GETFD) >= 0);  // it is the program's
    for (const int end : {own[0], own[1], closed}) close(end);
  }
}

TEST(a_handler_that_leaves_by_siglongjmp_is_called_again) {
  // GIVEN a handler of the program's that does not return
  set_handler([](int) {
    ++g_users;
    siglongjmp(g_place, 1);
  });
  watch_signal(SIGUSR1);
  g_users = 0;
  // WHEN signals come
  for (int signals = 0; signals < 3; ++signals) {
    if (sigsetjmp(g_place, 1) == 0) raise(SIGUSR1);
  }
  // THEN the handler was called for each
  CHECK(g_users == 3);
  CHECK(take_signals() == kUsr1);
  unwatch_signal(SIGUSR1);
  set_handler(SIG_DFL);
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
  in_a_child([] {
    // WHEN the signal comes to the child, THEN the child does not react, as without a watch
    raise(SIGUSR1);
    CHECK(take_signals() == 0 && !readable());
    // AND the child can watch too
    watch_signal(SIGUSR1);
    raise(SIGUSR1);
    CHECK(readable() && take_signals() == kUsr1);
  });
  // THEN the parent receives nothing
  CHECK(!readable() && take_signals() == 0);
  raise(SIGUSR1);
  CHECK(take_signals() == kUsr1);
  unwatch_signal(SIGUSR1);
}
