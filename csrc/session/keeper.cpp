#include "session/keeper.h"

#include <csignal>
#include <utility>

namespace pytracer {

Keeper::Keeper(std::shared_ptr<Box> box) : box_(std::move(box)) {
  sigset_t others, before;
  sigfillset(&others);
  // Those of the thread itself: the box's file may be truncated.
  for (const int own : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&others, own);
  pthread_sigmask(SIG_BLOCK, &others, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {  // contract 3
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  box_->set_keeper(thread_.joinable());
}

Keeper::~Keeper() {
  is_over_ = true;
  box_->wake();
  if (thread_.joinable()) thread_.join();
  box_->set_keeper(false);
}

void Keeper::look_after(std::shared_ptr<StackTable> stacks) noexcept {
  {
    std::lock_guard lock(mutex_);
    stacks_.swap(stacks);
  }
  box_->wake();
}

void Keeper::run() noexcept {
  box_->leave_descriptors();
  while (box_->wait(), !is_over_) {
    box_->keep_ahead();
    std::shared_ptr<StackTable> stacks;
    {
      std::lock_guard lock(mutex_);
      stacks = stacks_;
    }
    if (stacks) stacks->look_after();
  }
}

}  // namespace pytracer
