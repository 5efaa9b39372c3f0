#include "frames/walk_memo.h"

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "check.h"

using namespace pytracer;

namespace {

// Frames as an interpreter lays them out: most are on a stack in memory, where the next call reuses
// the place of the call that returned; frames of generators are elsewhere.
struct Frame {
  Frame* outer;
  uint64_t instruction;
};
struct FrameAccess {
  using FramePointer = Frame*;
  static Frame* outer(Frame* frame) { return frame->outer; }
  static uint64_t place(Frame* frame) { return frame->instruction; }
};

class Program {
 public:
  // The frames are in `memory`, which another Program may use while this one is not running.
  Program(unsigned seed, std::vector<uint64_t>& memory) : random_(seed), memory_(memory) {}
  Frame* innermost() { return calls_.empty() ? nullptr : calls_.back().frame; }
  // Returns from some calls, advances within a function, makes some calls.
  void run(size_t most_calls) {
    const int most_returns = random_() % 20 == 0 ? 40 : 4;
    for (int i = static_cast<int>(random_() % most_returns); i > 0 && !calls_.empty(); --i) leave();
    if (!calls_.empty() && random_() % 2 == 0) move_on();
    for (int i = static_cast<int>(random_() % 4); i > 0 && calls_.size() < most_calls; --i) enter();
    if (calls_.empty()) enter();
    if (random_() % 50 == 0) calls_[random_() % calls_.size()].frame->instruction ^= 2;  // resumed
  }
  // The innermost `depth` instructions, innermost first; then whether there are more frames.
  std::vector<uint64_t> stack(uint32_t depth) {
    std::vector<uint64_t> all;
    Frame* frame = innermost();
    for (; frame != nullptr && all.size() < depth; frame = frame->outer) {
      all.push_back(frame->instruction);
    }
    all.push_back(frame != nullptr);
    return all;
  }
  void enter() {
    Frame* outer = innermost();
    const size_t words = 2 + random_() % 3;  // so that frames have several sizes
    Call call{nullptr, nullptr, 0};
    if (random_() % 8 == 0) {
      call.elsewhere = std::make_unique<Frame>();  // the frame of a generator
      call.frame = call.elsewhere.get();
    } else {
      call.words = words;
      call.frame = reinterpret_cast<Frame*>(&memory_[used_]);
      used_ += words;
    }
    *call.frame = {outer, 16 * (1 + random_() % 5)};
    calls_.push_back(std::move(call));
  }
  void leave() {
    used_ -= calls_.back().words;
    calls_.pop_back();
  }
  void move_on() { innermost()->instruction = 16 * (1 + random_() % 5) + 2 * (random_() % 2); }

 private:
  struct Call {
    Frame* frame;
    std::unique_ptr<Frame> elsewhere;
    size_t words;
  };
  std::mt19937 random_;
  std::vector<Call> calls_;
  std::vector<uint64_t>& memory_;
  size_t used_ = 0;
};

constexpr size_t kWords = 1 << 16;

// A calling-context tree without bounds or threads.
class Tree {
 public:
  // Gives the memo's entries their nodes.
  void resolve(WalkMemo& memo) {
    const uint32_t first = memo.first_unknown();
    uint32_t node = first != 0 ? memo.entry(first - 1)->node : node_of(0, memo.base(), 0);
    for (uint32_t i = first; i < memo.size(); ++i) {
      const bool is_top = i + 1 == memo.size();
      const uint64_t place = is_top ? memo.top_place() : memo.entry(i)->place;
      node = node_of(node, place, hashes_[node]);
      CHECK((is_top ? memo.top_hash() : memo.entry(i)->hash) == hashes_[node]);
      memo.entry(i)->node = node;
    }
    memo.set_stack(node, node, false);
  }
  // The innermost `depth` instructions of a node, innermost first; then whether there are more.
  std::vector<uint64_t> stack(uint32_t node, uint32_t depth) const {
    std::vector<uint64_t> places;
    for (; outer_[node].first != 0; node = outer_[node].first) places.push_back(outer_[node].second);
    const auto base = static_cast<uint32_t>(outer_[node].second);
    CHECK(PathBase::depth(base) == depth);
    const bool is_truncated = PathBase::is_cut(base) || places.size() > depth;
    places.resize(std::min<size_t>(places.size(), depth));
    places.push_back(is_truncated);
    return places;
  }

 private:
  uint32_t node_of(uint32_t outer, uint64_t place, uint32_t outer_hash) {
    const auto [known, is_new] = nodes_.emplace(std::pair(outer, place), outer_.size());
    if (is_new) {
      outer_.push_back(known->first);
      hashes_.push_back(PathHash::extended(outer_hash, place));
    }
    return known->second;
  }
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> nodes_;
  std::vector<std::pair<uint32_t, uint64_t>> outer_{1};
  std::vector<uint32_t> hashes_{0};
};

// Returns whether the memo knew the stack.
bool follow(WalkMemo& memo, Tree& tree, Program& program, uint32_t depth, uint64_t seed = 1) {
  const bool same =
      memo.find<FrameAccess>(program.innermost(), depth, seed, false) != kUnknownStack;
  if (!same) tree.resolve(memo);
  CHECK(tree.stack(memo.stack(), depth) == program.stack(depth));
  CHECK(memo.is_truncated() == (program.stack(depth).back() != 0));
  return same;
}

void check_paths(unsigned seed, uint32_t depth, size_t most_calls) {
  std::vector<uint64_t> memory(kWords);
  Program program(seed, memory);
  program.enter();
  WalkMemo memo;
  Tree tree;
  int known = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (i % 3 != 0) program.run(most_calls);
    if (i % 101 == 100) memo.start_afresh();
    const bool same = follow(memo, tree, program, i % 50 == 0 ? depth + 1 : depth);
    // Where no call or return happened in between, the stack is known.
    CHECK(same || i % 3 != 0 || i % 50 < 2 || i % 101 == 100);
    known += same;
  }
  CHECK(known > 1000);
}

}  // namespace

TEST(walk_memo_has_the_paths_of_the_innermost_frames) {
  for (unsigned seed = 0, seeds = amount(2, 8); seed < seeds; ++seed) {
    check_paths(seed, 1, 20);
    check_paths(seed, 5, 4);
    check_paths(seed, 5, 12);
    check_paths(seed, 32, 60);
    check_paths(seed, 64, 200);  // more calls than the memo's slack
    check_paths(seed, kMaxStackDepth - 1, 100);
  }
}

TEST(walk_memo_knows_the_last_two_instructions) {
  std::vector<uint64_t> memory(kWords);
  Program program(1, memory);
  for (int i = 0; i < 6; ++i) program.enter();
  WalkMemo memo;
  Tree tree;
  const auto follow_at = [&](uint64_t instruction, uint32_t depth = 4, uint64_t seed = 1) {
    program.innermost()->instruction = instruction;
    return follow(memo, tree, program, depth, seed);
  };
  // GIVEN a function that allocates at one instruction and frees at another
  CHECK(!follow_at(16) && !follow_at(18));
  // WHEN it does so again, THEN both stacks are known
  for (int i = 0; i < 3; ++i) CHECK(follow_at(16) && follow_at(18));
  // A third instruction takes the place of the one that was left first.
  CHECK(!follow_at(20) && follow_at(18) && !follow_at(16));
  // After a call, another seed or another depth, only the last stack counts.
  program.enter();
  CHECK(!follow_at(32));
  program.leave();
  CHECK(!follow_at(16) && !follow_at(18) && follow_at(16));
  CHECK(!follow_at(18, 4, 2) && !follow_at(16, 4, 2) && !follow_at(18, 3, 2));
  CHECK(!follow_at(16, 3, 2) && follow_at(18, 3, 2));
}

// A thread slot with its memo passes from a thread to the next, whose frames are at the same
// places.
TEST(walk_memo_may_pass_to_another_thread) {
  WalkMemo memo;
  Tree tree;
  std::vector<uint64_t> memory(kWords);
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    Program program(seed, memory);
    const uint32_t depth = seed % 2 == 0 ? 8 : 64;
    for (int i = 0; i < 5; ++i) {
      program.run(30);
      follow(memo, tree, program, depth);
    }
    if (seed % 7 == 0) memo.forget();
  }
}

TEST(walk_memo_holds_the_deepest_stacks) {
  std::vector<uint64_t> memory(kWords);
  Program program(1, memory);
  for (uint32_t i = 0; i < 4 * kMaxStackDepth; ++i) program.enter();
  WalkMemo memo;
  Tree tree;
  for (const uint32_t depth : {kMaxStackDepth, kMaxStackDepth - 1, 1u, 40u, kMaxStackDepth}) {
    CHECK(!follow(memo, tree, program, depth) && follow(memo, tree, program, depth));
    for (uint32_t i = 0; i < 2 * kMaxStackDepth; ++i) {  // calls that return below
      program.enter();
      if (i % 7 == 0) follow(memo, tree, program, depth);
    }
    for (uint32_t i = 0; i < 2 * kMaxStackDepth; ++i) program.leave();
    CHECK(!follow(memo, tree, program, depth));
  }
}

// The frames that a memo has beyond `depth` may be gone, or others may be there.
TEST(walk_memo_sees_that_the_frames_beyond_are_gone) {
  std::vector<uint64_t> memory(kWords);
  Program program(1, memory);
  for (int i = 0; i < 6; ++i) program.enter();
  WalkMemo memo;
  Tree tree;
  Frame* outermost = program.innermost();
  while (outermost->outer != nullptr) outermost = outermost->outer;
  Frame caller{nullptr, 16};
  for (const uint32_t depth : {6u, 5u, 7u}) {
    for (int i = 0; i < 3; ++i) {
      outermost->outer = i == 1 ? &caller : nullptr;
      CHECK(!follow(memo, tree, program, depth) || depth == 5);
    }
  }
}
