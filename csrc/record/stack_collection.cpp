// The part of StackTable that frees stacks, and what they alone referred to.
#include <algorithm>

#include "record/stack_table.h"

namespace pytracer {

namespace {

constexpr uint32_t kCodes = 64;  // in place of kBurst: to free names takes longer
constexpr uint32_t kHeldIds = 128;  // the same, as many as of a log: a step has up to 64 bursts
constexpr uint32_t kSweepBursts = 8;

}  // namespace

void StackTable::want_collection() noexcept {
  const uint64_t left = max_stack_bytes_ - std::min(bytes_, max_stack_bytes_);
  const uint64_t room = left + stacks_.places() * StackTree::kStackBytes;
  // A collection looks at every stack and at every id that is in use. Where it frees few stacks, it
  // must not begin again at once.
  const uint64_t worth = stacks_.end() / 8 + marked_ids_ / 32;
  // Names find no room in free places of frames.
  const uint64_t for_names = max_bytes_ - bytes_;
  const uint64_t for_frames = for_names + free_frames_.count * sizeof(Frame);
  const bool frames_are_low = (for_frames < max_bytes_ / 16 || for_names < max_bytes_ / 64) &&
                              dead_codes_ > code_count_ / 8;
  if ((room < max_bytes_ / 16 || frames_are_low) && since_collection_ >= worth) {
    wanted_.store(true, std::memory_order_relaxed);
  }
}

void StackTable::begin_collection() noexcept {
  std::lock_guard lock(mutex_);
  since_collection_ = marked_ids_ = 0;
  last_walk_frames_ = 0;  // its stacks are no longer marked
  stacks_.unmark_all();
  // No memo and no key of the cache matches from here on. So each stack that a later hook uses is
  // interned, which marks it.
  const uint64_t seed = new_seed();
  seed_.store(seed, std::memory_order_seq_cst);
  era_.store(seed, std::memory_order_seq_cst);  // last: who reads it reads the new seed afterwards
}

void StackTable::clear_stale() noexcept {
  std::lock_guard lock(mutex_);
  marks_are_stale_ = false;
  next_held_ = next_held_id_ = 0;
}

uint32_t StackTable::mark(const uint32_t* ids, uint32_t count) noexcept {
  std::lock_guard lock(mutex_);
  uint32_t marked = 0;
  for (uint32_t i = 0; i < count; ++i) marked += stacks_.mark(ids[i]);
  marked_ids_ += count;
  return marked;
}

bool StackTable::mark_held() noexcept {
  std::lock_guard lock(mutex_);
  for (uint32_t left = kHeldIds; next_held_ < held_.size(); ++next_held_, next_held_id_ = 0) {
    const Held& held = *held_[next_held_];
    if (held.released.load(std::memory_order_acquire)) continue;
    for (; next_held_id_ < held.ids.size(); ++next_held_id_) {
      if (left-- == 0) return false;
      stacks_.mark(held.ids[next_held_id_]);
      ++marked_ids_;
    }
  }
  return true;
}

StackTable::Sweep StackTable::sweep() noexcept {
  for (uint32_t burst = 0; burst < kSweepBursts; ++burst) {
    std::lock_guard lock(mutex_);
    if (pins_.load(std::memory_order_acquire) > 0) return Sweep::unfinished;
    if (marks_are_stale_) return Sweep::marks_are_stale;
    const StackTree::Swept swept =
        stacks_.sweep(kBurst, [this](uint32_t frame) { stack_freed(frame); });
    walks_ -= swept.walks;
    freed_ += swept.walks;
    truncated_ -= swept.truncated;
    if (swept.done && remove_unused_codes(kCodes)) {
      wanted_.store(false, std::memory_order_relaxed);
      return Sweep::done;
    }
  }
  return Sweep::unfinished;
}

void StackTable::stack_freed(uint32_t frame) noexcept {
  if (StackLink::is_link(frame)) return;
  const uint32_t id = frames_[frame].code;
  if (--codes_[id].stacks == 0 && codes_[id].pointer == nullptr) {
    unused_codes_.push(codes_, id);
  }
}

bool StackTable::remove_unused_codes(uint32_t most) noexcept {
  for (; unused_codes_.count != 0 && most != 0; --most, --dead_codes_) {
    const uint32_t id = unused_codes_.pop(codes_);
    const Code code = codes_[id];
    for (uint32_t frame = code.newest_frame, next; frame != 0; frame = next) {
      next = frames_[frame].next_of_code;
      frames_[frame] = {};
      free_frames_.push(frames_, frame);
    }
    if (!code.named) bytes_ -= kNameBytes;  // there was no room for a frame
    release_string(code.filename);
    release_string(code.name);
    codes_[id] = {};
    free_codes_.push(codes_, id);
  }
  return unused_codes_.count == 0;
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

std::shared_ptr<StackTable> StackTable::holding(std::shared_ptr<StackTable> table,
                                                std::vector<uint32_t> ids) {
  if (!table) return nullptr;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  StackTable* const pointer = table.get();
  auto fresh = std::make_unique<Held>();
  fresh->ids = ids;
  // As the end of a pin, this takes no mutex.
  std::shared_ptr<StackTable> result(
      pointer, [owner = std::move(table), held = fresh.get()](StackTable*) {
        held->released.store(true, std::memory_order_release);
      });
  std::vector<std::unique_ptr<Held>>& all = pointer->held_;
  {
    std::lock_guard lock(pointer->mutex_);
    const auto place = std::find_if(all.begin(), all.end(), [](const auto& held) {
      return held->released.load(std::memory_order_acquire);
    });
    if (place != all.end()) {
      place->swap(fresh);
    } else {
      all.push_back(std::move(fresh));
    }
  }
  // A collection may have looked at that place already.
  for (size_t begin = 0; begin < ids.size(); begin += kBurst) {
    const size_t count = std::min<size_t>(ids.size() - begin, kBurst);
    pointer->mark(&ids[begin], static_cast<uint32_t>(count));
  }
  return result;
}

bool StackTable::is_held(uint32_t id) const {
  std::lock_guard lock(mutex_);
  return std::any_of(held_.begin(), held_.end(), [id](const auto& held) {
    return !held->released.load(std::memory_order_acquire) &&
           std::binary_search(held->ids.begin(), held->ids.end(), id);
  });
}

void StackTable::make_marks_stale() {
  std::lock_guard lock(mutex_);
  marks_are_stale_ = true;
}

}  // namespace pytracer
