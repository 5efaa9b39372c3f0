#include "phases.h"

#include <pthread.h>

#include <algorithm>

#include "clock.h"

namespace pytracer {

Phases& Phases::instance() noexcept {
  static Phases* const phases = new Phases;
  return *phases;
}

Phases::Phases() {
  pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                 [] {
                   instance().reset_after_fork();
                   instance().mutex_.unlock();
                 });
  detail::on_thread_end.store([](ThreadSlot& slot) noexcept { instance().forget(slot); },
                              std::memory_order_release);
}

void Phases::reset_after_fork() noexcept {
  const ThreadSlot* slot = detail::this_thread;
  entered_.erase(std::remove_if(entered_.begin(), entered_.end(),
                                [&](const Entry& each) { return each.slot != slot; }),
                 entered_.end());
  of_process_ = entered_.empty() ? uint16_t{0} : entered_.back().phase;
  left_.clear();
  left_count_ = 0;
  forgotten_end_ = 0;
}

Phases::Entered Phases::enter(std::string_view name) {
  ThreadSlot* slot = thread_slot();
  std::lock_guard lock(mutex_);
  if (slot == nullptr) return {0, 0};
  const uint16_t phase = number_of(slot->phase.load(std::memory_order_relaxed), name);
  if (phase == 0) return {0, 0};
  entered_.push_back({++entries_, slot, now_ticks(), phase});
  publish(*slot);
  return {entries_, phase};
}

uint16_t Phases::number_of(uint16_t parent, std::string_view name) {
  const auto found = numbers_.find({parent, name});
  if (found != numbers_.end()) return found->second;
  // Phases that are left in another order than entered would else nest ever deeper.
  for (uint16_t outer = parent; outer != 0; outer = nodes_[outer].parent) {
    if (nodes_[outer].name == name) return outer;
  }
  if (parent != 0 && nodes_.size() > kMaxNested) {
    ++names_dropped_;
    return number_of(0, name);
  }
  if (nodes_.size() > kMaxNumbers || name.size() > kMaxNameBytes - name_bytes_) {
    ++names_dropped_;
    return 0;
  }
  return add_number(parent, name);
}

uint16_t Phases::add_number(uint16_t parent, std::string_view name) {
  const auto number = static_cast<uint16_t>(nodes_.size());
  nodes_.push_back({parent, std::string(name)});
  try {
    numbers_.emplace(std::pair(parent, std::string_view(nodes_.back().name)), number);
  } catch (...) {
    nodes_.pop_back();
    throw;
  }
  name_bytes_ += name.size();
  return number;
}

void Phases::leave(uint64_t entry) noexcept {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(entered_.begin(), entered_.end(),
                                  [&](const Entry& each) { return each.number == entry; });
  if (found == entered_.end()) return;
  ThreadSlot& slot = *found->slot;
  keep(*found, now_ticks());
  entered_.erase(found);
  publish(slot);
}

bool Phases::is_entered(uint64_t entry) const noexcept {
  std::lock_guard lock(mutex_);
  return std::any_of(entered_.begin(), entered_.end(),
                     [&](const Entry& each) { return each.number == entry; });
}

void Phases::forget(ThreadSlot& slot) noexcept {
  std::lock_guard lock(mutex_);
  const int64_t end = now_ticks();
  for (const Entry& each : entered_) {
    if (each.slot == &slot) keep(each, end);
  }
  entered_.erase(std::remove_if(entered_.begin(), entered_.end(),
                                [&](const Entry& each) { return each.slot == &slot; }),
                 entered_.end());
  publish(slot);
}

void Phases::keep(const Entry& entry, int64_t end) noexcept {
  const Span span{entry.begin, end, entry.phase};
  const size_t place = left_count_ % kMaxSpans;
  if (place < left_.size()) {
    forgotten_end_ = std::max(forgotten_end_, left_[place].end);
    left_[place] = span;
  } else {
    try {
      left_.push_back(span);
    } catch (...) {  // out of memory
      forgotten_end_ = span.end;
      return;
    }
  }
  ++left_count_;
}

void Phases::publish(ThreadSlot& slot) noexcept {
  const auto innermost = std::find_if(entered_.rbegin(), entered_.rend(),
                                      [&](const Entry& each) { return each.slot == &slot; });
  slot.phase.store(innermost != entered_.rend() ? innermost->phase : uint16_t{0},
                   std::memory_order_relaxed);
  of_process_.store(entered_.empty() ? uint16_t{0} : entered_.back().phase,
                    std::memory_order_relaxed);
}

std::string_view Phases::name(uint16_t phase) const {
  std::lock_guard lock(mutex_);
  return phase < nodes_.size() ? nodes_[phase].name : std::string_view();
}

uint16_t Phases::parent(uint16_t phase) const {
  std::lock_guard lock(mutex_);
  return phase < nodes_.size() ? nodes_[phase].parent : uint16_t{0};
}

bool Phases::is_within(uint16_t phase, uint16_t outer) const {
  std::lock_guard lock(mutex_);
  while (phase != 0 && phase != outer && phase < nodes_.size()) phase = nodes_[phase].parent;
  return phase == outer;
}

Phases::Spans Phases::since(int64_t ticks) const {
  std::lock_guard lock(mutex_);
  Spans spans{{}, forgotten_end_ < ticks, names_dropped_};
  spans.all.reserve(left_.size() + entered_.size());
  for (const Span& span : left_) {
    if (span.end >= ticks) spans.all.push_back(span);
  }
  for (const Entry& each : entered_) spans.all.push_back({each.begin, kOpen, each.phase});
  return spans;
}

}  // namespace pytracer
