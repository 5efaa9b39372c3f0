#include "frames/walk_memo.h"

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
  static constexpr bool kInstructionsAreUnique = true;
  static Frame* outer(Frame* frame) { return frame->outer; }
  static const void* code(Frame* frame) { return reinterpret_cast<void*>(frame->instruction / 16); }
  static uint64_t instruction(Frame* frame) { return frame->instruction; }
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
using Key = std::pair<uint64_t, uint64_t>;
Key key_of(WalkMemo& memo) {
  const WalkKey key = memo.key();
  return {key.a, key.b};
}

// Two walks have the same key exactly if their innermost frames are the same. A stack that the memo
// knows is the walk's own.
void check_keys(unsigned seed, uint32_t depth, size_t most_calls) {
  std::vector<uint64_t> memory(kWords);
  Program program(seed, memory);
  program.enter();
  WalkMemo memo;
  std::map<std::vector<uint64_t>, Key> keys;
  std::map<Key, std::vector<uint64_t>> stacks;
  std::map<std::vector<uint64_t>, uint32_t> ids;
  int known = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (i % 3 != 0) program.run(most_calls);
    const std::vector<uint64_t> stack = program.stack(depth);
    const bool same = memo.follow<FrameAccess>(program.innermost(), depth, 1);
    const uint32_t id = ids.emplace(stack, ids.size() + 1).first->second;
    CHECK(!same || memo.stack() == id || memo.stack() == 0);
    CHECK(same || i % 3 != 0 || i == 0);  // no call or return happened in between
    known += same && memo.stack() != 0;
    memo.set_stack(i % 17 == 0 ? 0 : id);  // 0, as for a walk whose stack the table does not keep
    const Key key = key_of(memo);
    CHECK(keys.emplace(stack, key).first->second == key);
    CHECK(stacks.emplace(key, stack).first->second == stack);
  }
  CHECK(known > 1000);
}

}  // namespace

TEST(walk_memo_keys_depend_on_the_innermost_frames) {
  for (unsigned seed = 0, seeds = amount(2, 8); seed < seeds; ++seed) {
    check_keys(seed, 1, 20);
    check_keys(seed, 5, 4);
    check_keys(seed, 5, 12);
    check_keys(seed, 32, 60);
    check_keys(seed, 64, 200);  // more calls than the memo's slack
    check_keys(seed, kMaxStackDepth, 100);
  }
}

TEST(walk_memo_knows_the_last_two_instructions) {
  std::vector<uint64_t> memory(kWords);
  Program program(1, memory);
  for (int i = 0; i < 6; ++i) program.enter();
  WalkMemo memo;
  const auto follow_at = [&](uint64_t instruction, uint32_t depth = 4, uint64_t seed = 1) {
    program.innermost()->instruction = instruction;
    return memo.follow<FrameAccess>(program.innermost(), depth, seed);
  };
  const auto note_at = [&](uint64_t instruction, uint32_t depth = 4, uint64_t seed = 1) {
    CHECK(!follow_at(instruction, depth, seed));
    memo.set_stack(static_cast<uint32_t>(instruction));
    return key_of(memo);
  };
  // GIVEN a function that allocates at one instruction and frees at another
  const Key first = note_at(16), second = note_at(18);
  // WHEN it does so again, THEN both stacks are known, with their keys
  for (int i = 0; i < 3; ++i) {
    CHECK(follow_at(16) && memo.stack() == 16 && key_of(memo) == first);
    CHECK(follow_at(18) && memo.stack() == 18 && key_of(memo) == second);
  }
  // A third instruction takes the place of the one that was left first.
  note_at(20);
  CHECK(follow_at(18) && memo.stack() == 18);
  note_at(16);
  // After a call, another seed or another depth, only the last stack counts.
  program.enter();
  note_at(32);
  program.leave();
  note_at(16);
  note_at(18);
  CHECK(follow_at(16));
  note_at(18, 4, 2);
  note_at(16, 4, 2);
  note_at(18, 3, 2);
  note_at(16, 3, 2);
  CHECK(follow_at(18, 3, 2) && memo.stack() == 18);
}

// A thread slot with its memo passes from a thread to the next, whose frames are at the same
// places.
TEST(walk_memo_may_pass_to_another_thread) {
  WalkMemo memo;
  std::vector<uint64_t> memory(kWords);
  std::map<std::vector<uint64_t>, Key> keys;
  for (unsigned seed = 0; seed < 3'000; ++seed) {
    Program program(seed, memory);
    const uint32_t depth = seed % 2 == 0 ? 8 : 64;
    for (int i = 0; i < 5; ++i) {
      program.run(30);
      std::vector<uint64_t> stack = program.stack(depth);
      memo.follow<FrameAccess>(program.innermost(), depth, 1);
      stack.push_back(depth);
      CHECK(keys.emplace(stack, key_of(memo)).first->second == key_of(memo));
    }
    if (seed % 7 == 0) memo.forget();
  }
}

TEST(walk_memo_holds_the_deepest_stacks) {
  std::vector<uint64_t> memory(kWords);
  Program program(1, memory);
  for (uint32_t i = 0; i < 4 * kMaxStackDepth; ++i) program.enter();
  WalkMemo memo;
  for (const uint32_t depth : {kMaxStackDepth, kMaxStackDepth - 1, 1u, 40u, kMaxStackDepth}) {
    CHECK(!memo.follow<FrameAccess>(program.innermost(), depth, 1));
    CHECK(memo.follow<FrameAccess>(program.innermost(), depth, 1));
    const Key key = key_of(memo);
    for (uint32_t i = 0; i < 2 * kMaxStackDepth; ++i) {  // calls that return below
      program.enter();
      if (i % 7 == 0) memo.follow<FrameAccess>(program.innermost(), depth, 1);
    }
    for (uint32_t i = 0; i < 2 * kMaxStackDepth; ++i) program.leave();
    CHECK(!memo.follow<FrameAccess>(program.innermost(), depth, 1));
    CHECK(key_of(memo) == key);
  }
}

TEST(walk_memo_keys_differ_by_seed_and_truncation) {
  std::vector<uint64_t> memory(kWords);
  Program program(1, memory);
  for (int i = 0; i < 6; ++i) program.enter();
  WalkMemo memo;
  memo.follow<FrameAccess>(program.innermost(), 6, 1);
  const Key complete = key_of(memo);
  CHECK(!memo.follow<FrameAccess>(program.innermost(), 6, 2));
  CHECK(key_of(memo).first != complete.first && key_of(memo).second != complete.second);
  CHECK(!memo.follow<FrameAccess>(program.innermost(), 6, 1));
  CHECK(key_of(memo) == complete);
  // The same six frames, called from a seventh: only the link of the sixth frame differs.
  Frame* outermost = program.innermost();
  while (outermost->outer != nullptr) outermost = outermost->outer;
  Frame caller{nullptr, 16};
  outermost->outer = &caller;
  CHECK(!memo.follow<FrameAccess>(program.innermost(), 6, 1));
  CHECK(key_of(memo).first != complete.first && key_of(memo).second != complete.second);
}
