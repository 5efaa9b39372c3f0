// Threads that work beside a test, and children of a fork.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"

// Repeats work in a thread of its own until it is stopped or destroyed.
class Repeated {
 public:
  explicit Repeated(std::function<void()> work) : thread_([this, work = std::move(work)] {
    while (!is_stopped_) work();
  }) {}
  ~Repeated() { stop(); }
  void stop() {
    is_stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> is_stopped_{false};
  std::thread thread_;
};

// Calls `work` with 0, 1, ..., each on a thread of its own, and waits for their ends.
template <class Work>
void on_threads(uint64_t count, Work work) {
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < count; ++number) threads.emplace_back(work, number);
  for (std::thread& thread : threads) thread.join();
}
template <class Work>
void on_another_thread(Work work) {
  std::thread(work).join();
}

// A child that waits for a lock of its parent is ended.
template <class Work>
void in_a_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    work();
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}
