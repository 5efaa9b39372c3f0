// The frames of a thread's last walk, so that the next walk hashes only what has changed since.
//
// 1. One thread's at a time. Its entries are compared with the thread's frames, never followed: a
//    frame is read because its callee, read before, names it, and the innermost one because the
//    thread state does. So nothing is taken on trust, whatever the walks before were, another
//    thread's too, and every walk is exact.
// 2. A key depends on the innermost `depth` frames alone: it is the difference of two polynomials
//    over the entries, outermost first. Code objects that had one address one after the other are
//    told apart by the seed.
// 3. Bounded: kCapacity entries, of which those of the deepest walk are ever touched.
//
// Why it is faster than to hash each frame: that the next frame is the one noted is a prediction,
// not something to wait for, so the frames are read side by side and not one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pytracer {

constexpr uint32_t kMaxStackDepth = 1024;

// 128 bits over the frames of a walk: equal for equal walks, for different ones by chance only,
// with a probability around 2^-75 in a table of a million.
struct WalkKey {
  uint64_t a;
  uint64_t b;
};

class WalkMemo {
 public:
  // Notes what the innermost `depth` frames are, one or more; `innermost` is not null. True: the
  // same as in the last walk, and the seed too, so its key holds.
  // `Frames` tells of a frame: outer(), code() and instruction(), and whether kOwnInstructions: no
  // two code objects that are alive share one.
  template <class Frames>
  bool follow(typename Frames::Frame* innermost, uint32_t depth, uint64_t seed) noexcept {
    const uint32_t size = size_;
    const bool truncated = truncated_;
    const Change change = update<Frames>(innermost, depth);
    if (change == Change::lost) start_over<Frames>(innermost, depth);
    const bool same = change == Change::none && size == size_ && truncated == truncated_ &&
                      depth == depth_ && seed == seed_;
    depth_ = depth;
    seed_ = seed;
    return same;
  }

  // Of the last walk. The seed tells apart what frames' addresses alone do not.
  WalkKey key() noexcept {
    Chains chains = entries_[size_ - 1].chains;
    if (size_ > depth_) {
      if (depth_ != power_of_) set_power(depth_);
      const Chains& beyond = entries_[size_ - depth_ - 1].chains;
      chains.a -= beyond.a * power_.a;
      chains.b -= beyond.b * power_.b;
    }
    const uint64_t salt = (seed_ << 1) | truncated_;
    return {chains.a ^ scattered(salt), chains.b + salt};
  }

  // The next walk is not the same as the last.
  void forget() noexcept { size_ = 0; }

  uint32_t stack = 0;  // the caller's: what it made of the last walk

 private:
  static constexpr uint32_t kSlack = 16;  // frames beyond `depth`, for calls that return
  static constexpr uint32_t kCapacity = kMaxStackDepth + 4 * kSlack;
  static constexpr uint32_t kBuckets = 256;
  // Odd, and 5 modulo 8: their powers repeat as late as can be.
  static constexpr uint64_t kBaseA = 0x9e3779b97f4a7c15ull, kBaseB = 0xc2b2ae3d27d4eb4dull;

  struct Chains {  // polynomials over the frames from the outermost noted to this one
    uint64_t a, b;
  };
  struct Entry {
    const void* frame;
    uint64_t instruction;
    const void* code;
    Chains chains;
  };
  enum class Change { none, some, lost /* too little was as noted */ };

  template <class Frames>
  static bool holds(const Entry& entry, typename Frames::Frame* frame) noexcept {
    return entry.instruction == Frames::instruction(frame) &&
           (Frames::kOwnInstructions || entry.code == Frames::code(frame));
  }
  template <class Frames>
  static void note(Entry& entry, typename Frames::Frame* frame) noexcept {
    entry.frame = frame;
    entry.instruction = Frames::instruction(frame);
    entry.code = Frames::code(frame);
  }

  // Keeps the entries that still hold, of the innermost `depth` frames, and notes the others.
  template <class Frames>
  Change update(typename Frames::Frame* const innermost, uint32_t depth) noexcept {
    uint32_t added = 0;
    auto* frame = innermost;
    Entry* top = find(frame);
    for (; top == nullptr; top = find(frame)) {
      frame = Frames::outer(frame);
      if (frame == nullptr || ++added == depth) return Change::lost;
    }
    const uint32_t size = static_cast<uint32_t>(top - entries_) + 1 + added;
    Entry* const bottom = size > depth ? entries_ + (size - depth) : entries_;
    Entry* changed = top + 1;
    for (Entry* entry = top;; --entry) {
      if (!holds<Frames>(*entry, frame)) {
        note<Frames>(*entry, frame);
        changed = entry;
      }
      if (entry == bottom) break;
      auto* const outer = predicted<Frames>(entry[-1].frame);
      if (Frames::outer(frame) != outer) return Change::lost;
      frame = outer;
    }
    truncated_ = Frames::outer(frame) != nullptr;
    if ((truncated_ && size < depth) || size > kCapacity) return Change::lost;
    if (changed > top && added == 0) {
      size_ = size;
      return Change::none;
    }
    frame = innermost;
    for (Entry* entry = entries_ + size - 1; entry > top; --entry, frame = Frames::outer(frame)) {
      note<Frames>(*entry, frame);
    }
    extend(changed, size);
    return Change::some;
  }

  template <class Frames>
  void start_over(typename Frames::Frame* const innermost, uint32_t depth) noexcept {
    const uint32_t most = depth + std::min(depth, kSlack);
    uint32_t size = 0;
    for (auto* frame = innermost; frame != nullptr && size < most;
         frame = Frames::outer(frame)) {
      ++size;
    }
    auto* frame = innermost;
    for (uint32_t i = size; i-- > 0; frame = Frames::outer(frame)) note<Frames>(entries_[i], frame);
    truncated_ = size > depth;
    extend(entries_, size);
  }

  // The entries from `first` on are new.
  void extend(Entry* first, uint32_t size) noexcept {
    size_ = size;
    Chains chains = first == entries_ ? Chains{0, 0} : first[-1].chains;
    for (Entry* entry = first; entry < entries_ + size; ++entry) {
      const uint64_t code = reinterpret_cast<uint64_t>(entry->code);
      chains.a = chains.a * kBaseA + scattered(entry->instruction ^ (code << 21));
      chains.b = chains.b * kBaseB + scattered(code ^ (entry->instruction << 29));
      entry->chains = chains;
      places_[bucket_of(entry->frame)] = static_cast<uint16_t>(entry - entries_);
    }
  }

  void set_power(uint32_t exponent) noexcept {
    power_of_ = exponent;
    power_ = {1, 1};
    for (uint32_t i = 0; i < exponent; ++i) power_ = {power_.a * kBaseA, power_.b * kBaseB};
  }

  // The entry of a frame at this address, if one is found at once.
  Entry* find(const void* frame) noexcept {
    const uint32_t place = places_[bucket_of(frame)];
    return place < size_ && entries_[place].frame == frame ? &entries_[place] : nullptr;
  }
  static uint32_t bucket_of(const void* frame) noexcept {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(frame) >> 3) * 0x9e3779b1u >> 24;
  }
  // Hides from the compiler that this is what it is then compared with, which would be waited for.
  template <class Frames>
  static typename Frames::Frame* predicted(const void* frame) noexcept {
    asm("" : "+r"(frame));
    return static_cast<typename Frames::Frame*>(const_cast<void*>(frame));
  }
  // One to one; low bits of the result depend on high ones of the value too.
  static uint64_t scattered(uint64_t value) noexcept {
    value *= 0xd6e8feb86659fd93ull;
    return value ^ (value >> 32);
  }

  uint32_t size_ = 0;
  bool truncated_ = false;  // the last walk: there were more than `depth_` frames
  uint32_t depth_ = 0;
  uint64_t seed_ = 0;
  uint32_t power_of_ = 0;
  Chains power_{1, 1};  // the bases to the power of `power_of_`
  uint16_t places_[kBuckets] = {};
  Entry entries_[kCapacity];  // outermost first; unspecified from `size_` on
};

}  // namespace pytracer
