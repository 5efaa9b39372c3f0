#include "simulator/simulate.h"

#include <algorithm>
#include <string>
#include <vector>

namespace pytracer::simulator {

namespace {

class Run final : public Host {
 public:
  Run(const Requests& requests, const Rules& rules, const Options& options, const Start* start, Simulated& result)
      : requests_(requests), options_(options), result_(result), allocator_(rules, *this) {
    check();
    int64_t last = -1;
    for (size_t i = 0; i < requests.size; ++i) last = std::max(last, requests.block[i]);
    blocks_.resize(static_cast<size_t>(last + 1), nullptr);
    if (start == nullptr) return;
    allocator_.begin(*start, blocks_);
    is_from_start_.resize(blocks_.size());
    for (size_t i = 0; i < blocks_.size(); ++i) is_from_start_[i] = blocks_[i] != nullptr;
    if (!allocator_.is_within_limits()) allocator_.empty_cache();
    starts_within_limits_ = allocator_.is_within_limits();
  }

  void run(reading::Watch& watch) {
    for (size_t i = 0; i < requests_.size; ++i) {
      watch.tick();
      current_ = i;
      const bool goes_on = starts_within_limits_ ? request(i) : fail(i);
      note();
      if (!goes_on) {
        result_.failed_request = static_cast<int64_t>(i);
        for (size_t rest = i + 1; rest < requests_.size; ++rest) write_curve();
        break;
      }
    }
    result_.counts = allocator_.counts();
  }

  void on_call(DeviceCall call, uint64_t address, uint64_t bytes) override {
    if (!options_.with_calls) return;
    result_.call.push_back(static_cast<uint8_t>(call));
    result_.call_request.push_back(static_cast<int64_t>(current_));
    result_.call_address.push_back(static_cast<int64_t>(address));
    result_.call_bytes.push_back(static_cast<int64_t>(bytes));
  }

  void complete_left() override { complete(left_.size()); }
  void on_synchronized() override { synchronized_ = left_.size(); }

 private:
  // Block numbers count the allocations, so that the table of blocks is no larger than a column.
  // After requests were removed, numbers are missing: up to 8 of 9.
  void check() const {
    const auto most = static_cast<int64_t>(std::max<size_t>(8 * requests_.size, 1 << 20));
    for (size_t i = 0; i < requests_.size; ++i) {
      const auto kind = static_cast<Kind>(requests_.kind[i]);
      if (kind > Kind::empty_cache) refuse(i, "kind", requests_.kind[i]);
      const bool has_block = kind == Kind::allocate || kind == Kind::free || kind == Kind::leave;
      if (requests_.block[i] < (has_block ? 0 : -1) || requests_.block[i] >= most) {
        refuse(i, "block", requests_.block[i]);
      }
      if (kind != Kind::allocate && kind != Kind::fail && kind != Kind::release_pool) continue;
      if (requests_.size_bytes[i] < 0) refuse(i, "size_bytes", requests_.size_bytes[i]);
      if (requests_.stream[i] < 0) refuse(i, "stream", requests_.stream[i]);
      if (requests_.pool[i] < 0) refuse(i, "pool", requests_.pool[i]);
    }
  }

  [[noreturn]] static void refuse(size_t request, const char* column, int64_t value) {
    throw RequestError("request " + std::to_string(request) + " has " + column + " " +
                       std::to_string(value) + ", which is out of range");
  }

  Block*& block_of(size_t i) { return blocks_[static_cast<size_t>(requests_.block[i])]; }

  // Frees the first `count` blocks that were left.
  void complete(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Block*& block = blocks_[static_cast<size_t>(left_[i])];
      if (block == nullptr || block->counts) continue;  // it was freed since
      allocator_.free(block);
      block = nullptr;
      ++result_.freed_early;
    }
    left_.erase(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(count));
    synchronized_ = 0;
  }

  Block* allocate(size_t i) {
    if (synchronized_ > 0) complete(synchronized_);
    return allocator_.allocate(static_cast<uint64_t>(requests_.size_bytes[i]),
                               static_cast<uint64_t>(requests_.stream[i]),
                               static_cast<uint64_t>(requests_.pool[i]));
  }

  bool fail(size_t i) {
    result_.oom_requests.push_back(static_cast<int64_t>(i));
    return false;
  }

  // Returns whether the requests after it are made.
  bool request(size_t i) {
    switch (static_cast<Kind>(requests_.kind[i])) {
      case Kind::allocate: {
        const auto block = static_cast<size_t>(requests_.block[i]);
        if (!is_from_start_.empty() && is_from_start_[block]) {
          is_from_start_[block] = false;
          return true;
        }
        if (block_of(i) != nullptr) refuse(i, "the allocated block", requests_.block[i]);
        Block* made = allocate(i);
        block_of(i) = made;
        if (options_.with_calls && made != nullptr) address_ = made->address;
        if (made != nullptr) return true;
        return fail(i) || options_.continues;
      }
      case Kind::free:
        if (block_of(i) != nullptr) allocator_.free(block_of(i));
        block_of(i) = nullptr;
        return true;
      case Kind::leave:
        if (block_of(i) == nullptr || !block_of(i)->counts) return true;
        allocator_.leave(block_of(i));
        left_.push_back(requests_.block[i]);
        return true;
      case Kind::fail:
        // The recording has no free of it.
        if (Block* made = allocate(i)) {
          allocator_.free(made);
          ++result_.fitted;
        } else {
          fail(i);
        }
        return true;
      case Kind::release_pool:
        allocator_.release_pool(static_cast<uint64_t>(requests_.pool[i]));
        return true;
      case Kind::empty_cache: allocator_.empty_cache(); return true;
    }
    return true;
  }

  void note() {
    const Counts& counts = allocator_.counts();
    if (counts.reserved_bytes > peak_) {
      peak_ = counts.reserved_bytes;
      result_.allocated_at_peak_bytes = counts.allocated_bytes;
    }
    write_curve();
  }

  void write_curve() {
    if (options_.with_curve) {
      result_.reserved_bytes.push_back(static_cast<int64_t>(allocator_.counts().reserved_bytes));
      result_.allocated_bytes.push_back(static_cast<int64_t>(allocator_.counts().allocated_bytes));
    }
    if (options_.with_calls) result_.address.push_back(static_cast<int64_t>(address_));
    address_ = 0;
  }

  const Requests& requests_;
  const Options& options_;
  Simulated& result_;
  Allocator allocator_;
  std::vector<Block*> blocks_;
  std::vector<bool> is_from_start_;  // by block; empty without a start
  bool starts_within_limits_ = true;
  std::vector<int64_t> left_;  // the numbers of blocks, in the order in which they were left
  size_t synchronized_ = 0;    // of these, the first ones, which are freed before the next allocation
  size_t current_ = 0;  // the request
  uint64_t peak_ = 0, address_ = 0;
};

}  // namespace

Simulated simulate(const Requests& requests, const Rules& rules, const Options& options,
                   reading::Watch& watch, const Start* start) {
  Simulated result;
  Run(requests, rules, options, start, result).run(watch);
  return result;
}

}  // namespace pytracer::simulator
