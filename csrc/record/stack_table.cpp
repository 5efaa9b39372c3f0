#include "record/stack_table.h"

#include <algorithm>

#include "record/thread_slot.h"

namespace pytracer {

StackTable::StackTable(uint64_t max_bytes, std::shared_ptr<Box> box)
    : max_bytes_(max_bytes), box_(std::move(box)),
      current_(std::make_shared<CallTree>(max_bytes / 2, box_, false)), known_{current_},
      newest_(current_.get()) {}

StackTable::StackTable(std::shared_ptr<CallTree> current, std::shared_ptr<CallTree> old)
    : max_bytes_(0), current_(std::move(current)), old_(std::move(old)), known_{old_, current_},
      newest_(current_.get()) {}

uint64_t StackTable::new_seed() noexcept {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

uint32_t StackTable::intern(WalkMemo& walk) noexcept {
  std::lock_guard lock(mutex_);
  if (walk.seed() != seed_.load(std::memory_order_relaxed)) return kUnknownStack;
  const uint32_t stack = current_->add(walk);
  note_added(stack == 0);
  return stack;
}

uint32_t StackTable::intern_backward(const Backward& backward) noexcept {
  const uint32_t links[] = {StackLink::forward(backward.forward, backward.is_exact),
                            StackLink::parameter(backward.parameter),
                            StackLink::node(backward.node_type, backward.phase)};
  const auto has_stacks = [&](const CallTree& tree) {
    return (backward.own == 0 || tree.has(backward.own)) &&
           (backward.forward == 0 || tree.has(backward.forward));
  };
  const CallTree* const tree = newest();
  uint32_t stack = backward.own;
  bool is_known = has_stacks(*tree);
  for (const uint32_t link : links) {
    if (link == 0 || !is_known) continue;
    const uint32_t inner = tree->find_link(stack, link);
    is_known = inner != 0;
    if (is_known) stack = inner;
  }
  if (is_known) return stack;
  std::lock_guard lock(mutex_);
  // Nothing is copied here: other hooks may still look for stacks in the old generation.
  if (!has_stacks(*current_)) return kUnknownStack;
  stack = backward.own;
  bool has_room = true;
  for (const uint32_t link : links) {
    if (link == 0 || !has_room) continue;
    const uint32_t inner = current_->add_link(stack, link);
    has_room = inner != 0;
    if (has_room) stack = inner;
  }
  note_added(!has_room);
  return stack;
}

// A generation copies each stack that is in use, and looks at each event and block. Where little is out of
// use, a new one must not begin at once.
void StackTable::note_added(bool is_dropped) noexcept {
  dropped_ += is_dropped;
  dropped_since_ += is_dropped;
  // The new generation has what is left for the frames and names of what runs, until all is copied.
  if (!current_->has_less_than(4) || old_) return;
  const uint64_t added = current_->last_stack() - first_added_ + dropped_since_;
  const uint64_t worth = current_->size() / 8 + looked_at_.load(std::memory_order_relaxed) / 32;
  if (added >= worth) wanted_.store(true, std::memory_order_relaxed);
}

void StackTable::make_spare() noexcept {
  try {
    auto spare = std::make_shared<CallTree>(max_bytes_ / 2, box_, true);
    std::lock_guard lock(mutex_);
    spare_ = std::move(spare);
  } catch (...) {  // no memory: hooks ask again with the next new stack
    std::lock_guard lock(mutex_);
    if (!old_) wanted_.store(false, std::memory_order_relaxed);  // else one has begun
  }
}

void StackTable::look_after() noexcept {
  bool has_spare;
  {
    std::shared_ptr<CallTree> gone;  // is destroyed without the mutex
    std::lock_guard lock(mutex_);
    gone = std::move(gone_);
    has_spare = spare_ != nullptr;
  }
  if (!has_spare) make_spare();
}

bool StackTable::begin_generation() noexcept {
  if (!has_keeper()) make_spare();
  try {
    std::lock_guard lock(mutex_);
    if (!spare_ || gone_) {
      if (!has_keeper()) wanted_.store(false, std::memory_order_relaxed);  // no memory
      if (box_) box_->wake();
      return false;
    }
    known_.erase(std::remove_if(known_.begin(), known_.end(),
                                [](const auto& tree) { return tree.expired(); }),
                 known_.end());
    known_.reserve(known_.size() + 1);
    const uint32_t last = current_->last_stack();
    // After 500 million stacks, numbers are given out again.
    const bool has_numbers = kMostStacks - last > max_bytes_ / CallTree::kStackBytes;
    auto fresh = std::move(spare_);
    fresh->begin_after(has_numbers ? last : 0);
    if (box_) box_->begin_spare(has_numbers ? last : 0);
    // What hooks add meanwhile must leave room for the copies.
    const uint64_t taken = current_->counts().bytes, empty = fresh->counts().bytes;
    fresh->reserve(taken - std::min(taken, empty));
    known_.push_back(fresh);
    old_ = std::exchange(current_, std::move(fresh));
    ++generations_;
    ring_was_replaced_ = false;
    looked_at_.store(0, std::memory_order_relaxed);
    // From here on no memo holds, and hooks find no stack in the old generation.
    newest_.store(current_.get(), std::memory_order_seq_cst);
    const uint64_t seed = new_seed();
    seed_.store(seed, std::memory_order_seq_cst);
    era_.store(seed, std::memory_order_seq_cst);  // last: who reads it reads the new seed afterwards
    if (box_) box_->wake();  // for the next one
    return true;
  } catch (...) {
    wanted_.store(false, std::memory_order_relaxed);
    return false;
  }
}

uint32_t StackTable::renewed(uint32_t stack) noexcept {
  looked_at_.store(looked_at_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (stack == 0 || newest()->has(stack)) return stack;
  std::lock_guard lock(mutex_);
  return old_ && old_->has(stack) ? current_->copy(*old_, stack) : stack;
}

StackTable::End StackTable::end_generation() noexcept {
  std::shared_ptr<CallTree> gone;  // is destroyed without the mutex
  std::lock_guard lock(mutex_);
  if (pins_.load(std::memory_order_acquire) > 0) return End::pinned;
  if (std::exchange(ring_was_replaced_, false)) return End::again;
  current_->reserve(0);
  first_added_ = current_->last_stack();
  dropped_since_ = 0;
  gone = std::move(old_);
  if (has_keeper()) {
    gone_ = std::move(gone);
    box_->wake();
  }
  wanted_.store(false, std::memory_order_relaxed);
  return End::done;
}

std::shared_ptr<StackTable> StackTable::pinned(std::shared_ptr<StackTable> table) {
  if (!table) return nullptr;
  StackTable* const pointer = table.get();
  {
    std::lock_guard lock(pointer->mutex_);
    pointer->pins_.fetch_add(1, std::memory_order_relaxed);
  }
  // The end of a pin takes no mutex: a view may be destroyed in a forked child, where a thread that
  // does not exist may hold it.
  return {pointer, [owner = std::move(table)](StackTable* pinned) {
            pinned->pins_.fetch_sub(1, std::memory_order_release);
          }};
}

void StackTable::note_replaced_ring() {
  std::lock_guard lock(mutex_);
  ring_was_replaced_ = true;
}

StackTable::Generations StackTable::generations() const {
  std::lock_guard lock(mutex_);
  Generations all{current_};
  if (old_) all.push_back(old_);
  return all;
}

std::shared_ptr<const CallTree> StackTable::generation_of(uint32_t stack) const {
  std::lock_guard lock(mutex_);
  for (auto tree = known_.rbegin(); tree != known_.rend(); ++tree) {  // the newest one first
    auto held = tree->lock();
    if (held && held->has(stack)) return held;
  }
  return nullptr;
}

void StackTable::code_destroyed(const void* pointer) noexcept {
  std::lock_guard lock(mutex_);
  bool is_known = false;
  for (const std::weak_ptr<CallTree>& each : known_) {
    if (const auto tree = each.lock()) is_known |= tree->retire(pointer);
  }
  // The address may now be given to another code object: no memo must have it. None has a code object
  // that is in no tree.
  if (is_known) seed_.store(new_seed(), std::memory_order_release);
}

StackTable::Stats StackTable::stats() const {
  std::lock_guard lock(mutex_);
  CallTree::Counts counts = current_->counts();
  if (old_) {
    const CallTree::Counts old = old_->counts();
    counts = {counts.stacks + old.stacks, counts.frames + old.frames, counts.codes + old.codes,
              counts.bytes + old.bytes, counts.truncated + old.truncated};
  }
  return {counts.stacks, counts.frames, counts.codes, counts.bytes, max_bytes_, counts.truncated,
          dropped_, generations_};
}

constexpr uint32_t kBursts = 256;  // in one step

void StackRenewal::step(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                        int log_count) noexcept {
  if (busy_.exchange(true, std::memory_order_acquire)) return;
  switch (stage_) {
    case Stage::idle:
      // Otherwise another thread has just finished.
      if (!stacks.wants_generation() || !stacks.begin_generation()) break;
      note_hooks();
      stage_ = Stage::waiting_for_hooks;
      break;
    case Stage::waiting_for_hooks:
      if (!noted_hooks_have_ended()) break;
      stage_ = Stage::renewing;
      break;
    case Stage::renewing:
      if (renew(stacks, logs, log_count)) stage_ = Stage::ending;
      break;
    case Stage::ending:
      switch (stacks.end_generation()) {
        case StackTable::End::pinned: break;
        case StackTable::End::done: stage_ = Stage::idle; break;
        case StackTable::End::again: stage_ = Stage::renewing;
      }
  }
  busy_.store(false, std::memory_order_release);
}

bool StackRenewal::renew(StackTable& stacks, const std::atomic<DeviceLog*>* logs,
                         int log_count) noexcept {
  for (uint32_t burst = 0; burst < kBursts;) {
    DeviceLog* const log = log_ < log_count ? logs[log_].load(std::memory_order_acquire) : nullptr;
    if (log != nullptr && scan_.part != DeviceLog::StackScan::done) {
      log->renew_stacks(scan_, stacks);
      ++burst;
      continue;
    }
    scan_ = {};
    if (++log_ < log_count) continue;
    log_ = 0;
    return true;
  }
  return false;
}

void StackRenewal::reset() noexcept {
  busy_.store(false, std::memory_order_relaxed);
  stage_ = Stage::idle;
  log_ = 0;
  scan_ = {};
}

}  // namespace pytracer
