#include "record/phases.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "record/clock.h"
#include "record/recorder.h"

namespace pytracer {

Phases& Phases::instance() noexcept {
  static Phases* const phases = new Phases;
  return *phases;
}

Phases::Phases() {
  pthread_atfork(nullptr, nullptr, [] { instance().reset_after_fork(); });
  detail::on_thread_end.store([](ThreadSlot& slot) noexcept { instance().end_phases(slot); },
                              std::memory_order_release);
}

void Phases::reset_after_fork() noexcept {
  // Another thread may have been changing the spans, so they are leaked, not cleared.
  new (&mutex_) std::mutex;
  noted_ = nullptr;
  new (&left_) std::vector<Span>();
  left_count_ = 0;
  forgotten_end_ = 0;
  ThreadSlot* slot = detail::this_thread;
  for (std::atomic<Entry*>* link = &newest_; Entry* entry = *link;) {
    if (entry->slot == slot) {
      link = &entry->older;
    } else {
      remove(*link);
    }
  }
  if (slot != nullptr) {
    publish(*slot);
  } else {
    process_phase_.store(0, std::memory_order_relaxed);
  }
}

Phases::Entered Phases::enter(std::string_view name) {
  ThreadSlot* slot = thread_slot();
  std::lock_guard lock(mutex_);
  if (slot == nullptr) return {0, 0};
  const uint16_t phase = find_or_add(slot->phase.load(std::memory_order_relaxed), name);
  if (phase == 0) return {0, 0};
  newest_ = new Entry{++entries_, slot, now_ticks(), phase, newest_.load()};
  publish(*slot);
  return {entries_, phase};
}

uint16_t Phases::find_or_add(uint16_t parent, std::string_view name) {
  const auto found = numbers_.find({parent, name});
  if (found != numbers_.end()) return found->second;
  // Otherwise phases that are left in another order than entered would nest ever deeper.
  for (uint16_t outer = parent; outer != 0; outer = nodes_[outer].parent) {
    if (nodes_[outer].name == name) return outer;
  }
  if (parent != 0 && nodes_.size() > kMaxNested) {
    ++names_dropped_;
    return find_or_add(0, name);
  }
  if (nodes_.size() > kMaxNumbers || name.size() > kMaxNameBytes - name_bytes_) {
    ++names_dropped_;
    return 0;
  }
  return add_number(parent, name);
}

void Phases::add(uint16_t parent, std::string_view name) {
  std::lock_guard lock(mutex_);
  if (nodes_.size() <= kMaxNumbers) add_number(parent < nodes_.size() ? parent : uint16_t{0}, name);
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
  if (noted_ != nullptr && Recorder::instance().is_whole()) note(number);
  return number;
}

void Phases::note(size_t number) noexcept {
  const Node& node = nodes_[number];
  char row[1024];
  const uint16_t numbers[] = {static_cast<uint16_t>(number), node.parent};
  std::memcpy(row, numbers, sizeof(numbers));
  const size_t size = node.name.copy(row + sizeof(numbers), sizeof(row) - sizeof(numbers));
  noted_->intern({row, sizeof(numbers) + size});
}

void Phases::note_in(InternTable* table) noexcept {
  std::lock_guard lock(mutex_);
  noted_ = table;
  for (size_t i = 1; i < nodes_.size() && table != nullptr; ++i) note(i);
}

std::atomic<Phases::Entry*>* Phases::find(uint64_t entry) noexcept {
  std::atomic<Entry*>* link = &newest_;
  for (; Entry* candidate = *link; link = &candidate->older) {
    if (candidate->number == entry) return link;
  }
  return nullptr;
}

void Phases::remove(std::atomic<Entry*>& link) noexcept {
  Entry* const entry = link;
  link = entry->older.load();
  delete entry;
}

void Phases::leave(uint64_t entry) noexcept {
  std::lock_guard lock(mutex_);
  std::atomic<Entry*>* const link = find(entry);
  if (link == nullptr) return;
  const Entry* const left = *link;
  ThreadSlot& slot = *left->slot;
  add_span(*left, now_ticks());
  remove(*link);
  publish(slot);
}

bool Phases::is_entered(uint64_t entry) noexcept {
  std::lock_guard lock(mutex_);
  return find(entry) != nullptr;
}

void Phases::end_phases(ThreadSlot& slot) noexcept {
  std::lock_guard lock(mutex_);
  const int64_t end = now_ticks();
  for (std::atomic<Entry*>* link = &newest_; Entry* entry = *link;) {
    if (entry->slot == &slot) {
      add_span(*entry, end);
      remove(*link);
    } else {
      link = &entry->older;
    }
  }
  publish(slot);
}

void Phases::add_span(const Entry& entry, int64_t end) noexcept {
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
  const Entry* const newest = newest_;
  const Entry* innermost = newest;
  while (innermost != nullptr && innermost->slot != &slot) innermost = innermost->older;
  slot.phase.store(innermost != nullptr ? innermost->phase : uint16_t{0}, std::memory_order_relaxed);
  process_phase_.store(newest != nullptr ? newest->phase : uint16_t{0}, std::memory_order_relaxed);
}

size_t Phases::numbers() const {
  std::lock_guard lock(mutex_);
  return nodes_.size() - 1;
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
  spans.all.reserve(left_.size());
  for (const Span& span : left_) {
    if (span.end >= ticks) spans.all.push_back(span);
  }
  for (const Entry* entry = newest_; entry != nullptr; entry = entry->older) {
    spans.all.push_back({entry->begin, kOpen, entry->phase});
  }
  return spans;
}

}  // namespace pytracer
