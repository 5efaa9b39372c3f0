#include "session/box_notes.h"

#include <csignal>
#include <cstring>
#include <utility>

#include "record/node_types.h"
#include "record/phases.h"

namespace pytracer {

BoxNotes::BoxNotes(const std::shared_ptr<Box>& box)
    : steps_(kMostSteps, {box, BoxKind::steps}), clock_(kMostPairs, {box, BoxKind::clock}),
      accelerator_clock_(kMostPairs, {box, BoxKind::accelerator_clock}),
      phases_(1 << 21, UINT16_MAX, {box, BoxKind::phases}),
      node_types_(1 << 17, UINT16_MAX, {box, BoxKind::node_types}),
      description_(2 * size_t{kMaxDescription}, {box, BoxKind::description}) {
  Phases::instance().note_in(&phases_);
  NodeTypes::instance().note_in(&node_types_);
}

BoxNotes::~BoxNotes() {
  Phases::instance().note_in(nullptr);
  NodeTypes::instance().note_in(nullptr);
}

void BoxNotes::describe(std::string_view text) noexcept {
  const uint64_t half = (description_.count() & 1) ^ 1;
  const size_t begin = half * kMaxDescription;
  const size_t size = std::min<size_t>(text.size(), kMaxDescription);
  if (description_.back(begin + size) < begin + size) return;
  if (size > 0) std::memcpy(&description_[begin], text.data(), size);
  description_.set_count(uint64_t{size} << 1 | half);
}

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
