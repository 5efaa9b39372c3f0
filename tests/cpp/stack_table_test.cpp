#include "record/stack_table.h"

#include <map>
#include <vector>

#include "check.h"
#include "fake_frame_walk.h"
#include "stack_here.h"
#include "threads.h"

using namespace pytracer;

TEST(stacks_are_stored_once) {
  StackTable table(1 << 20);
  run_frames({frame_at(1, 10), frame_at(2, 20)});
  const uint32_t first = stack_here(table);
  run_frames({frame_at(1, 12), frame_at(2, 20)});
  const uint32_t second = stack_here(table);
  run_frames({frame_at(1, 10), frame_at(2, 20)});
  CHECK(first != 0 && second != 0 && first != second && stack_here(table) == first);
  const CallTree::Frames frames = frames_of(table, first);
  CHECK(frames.innermost_first.size() == 2 && !frames.is_truncated);
  CHECK(frame_of(table, first, 0).line == 11 && name_of(table, first) == "f1");
  CHECK(filename_of(table, first) == "file.py");
  CHECK(table.stats().stacks == 2 && table.stats().frames == 3 && table.stats().codes == 2);
}

TEST(stacks_keep_the_innermost_frames) {
  StackTable table(1 << 20);
  run_frames({frame_at(1, 1), frame_at(2, 2), frame_at(3, 3)});
  const uint32_t cut = stack_here(table, 2);
  run_frames({frame_at(1, 1), frame_at(2, 2)});
  const uint32_t whole = stack_here(table, 2);
  CHECK(cut != whole);
  CHECK(frames_of(table, cut, 2).innermost_first.size() == 2);
  CHECK(frames_of(table, cut, 2).is_truncated && frame_of(table, cut, 1).offset == 2);
  CHECK(!frames_of(table, whole, 2).is_truncated && table.stats().truncated == 1);
  // No reader sees more frames than were compared.
  run_frames(std::vector<RawFrame>(500, frame_at(1, 1)));
  CHECK(frames_of(table, stack_here(table, 2)).innermost_first.size() == 2);
}

TEST(stacks_share_their_callers) {
  StackTable table(1 << 20);
  std::vector<RawFrame> frames(20, frame_at(1, 1));
  for (int32_t i = 0; i < 20; ++i) frames[static_cast<size_t>(i)].offset = i;
  run_frames(frames);
  const uint32_t first = stack_here(table);
  // A stack with one more frame takes a frame and a stack.
  const uint64_t before = table.stats().bytes;
  const uint64_t most = sizeof(CallTree::Frame) + sizeof(uint32_t) + CallTree::kStackBytes;
  frames.insert(frames.begin(), frame_at(1, 100));
  for (int32_t i = 0; i < 100; ++i) {
    frames[0].offset = 100 + i;
    run_frames(frames);
    const uint32_t stack = stack_here(table);
    CHECK(table.generation_of(stack)->outer(stack) == first);
  }
  CHECK(table.stats().stacks == 101 && table.stats().bytes <= before + 100 * most);
  // The callers alone are a stack of their own, once an event has it.
  run_frames(std::vector<RawFrame>(frames.begin() + 2, frames.end()));
  CHECK(stack_here(table) == table.generation_of(first)->outer(first) && table.stats().stacks == 102);
}

TEST(an_address_used_again_is_another_code_object) {
  StackTable table(1 << 20);
  run_frames({frame_at(7, 1)});
  const uint32_t before = stack_here(table);
  table.code_destroyed(reinterpret_cast<const void*>(7));
  table.code_destroyed(reinterpret_cast<const void*>(8));  // a code object that was never seen
  const uint32_t after = stack_here(table);
  CHECK(after != before && table.stats().codes == 2);
  // The destroyed code object was read before its destruction.
  CHECK(frame_of(table, before, 0).line == 8);
  CHECK(name_of(table, before) == "f7");
}

TEST(a_destroyed_code_object_that_no_stack_has_starts_no_walk_afresh) {
  StackTable table(1 << 20);
  run_frames({frame_at(7, 1)});
  stack_here(table);
  const uint64_t seed = table.seed();
  table.code_destroyed(reinterpret_cast<const void*>(8));
  CHECK(table.seed() == seed);
  table.code_destroyed(reinterpret_cast<const void*>(7));
  CHECK(table.seed() != seed);
  const uint64_t later = table.seed();
  table.code_destroyed(reinterpret_cast<const void*>(7));  // it was destroyed already
  CHECK(table.seed() == later);
}

TEST(stacks_of_others_survive_a_destroyed_code) {
  StackTable table(1 << 20);
  std::vector<uint32_t> ids;
  for (uintptr_t code = 1; code <= 500; ++code) {
    run_frames({frame_at(code, 1), frame_at(10'000, 2)});
    ids.push_back(stack_here(table));
  }
  table.code_destroyed(reinterpret_cast<const void*>(250));
  for (uintptr_t code = 1; code <= 500; ++code) {
    run_frames({frame_at(code, 1), frame_at(10'000, 2)});
    CHECK((stack_here(table) == ids[code - 1]) == (code != 250));
  }
}

TEST(the_bound_holds_and_is_counted) {
  constexpr uint64_t kBound = 1 << 18;
  StackTable table(kBound);
  uint64_t refused = 0;
  for (int32_t i = 0; i < 20'000; ++i) {
    run_frames({frame_at(1 + static_cast<uintptr_t>(i), i), frame_at(50'000, i)});
    refused += stack_here(table) == 0;
  }
  const StackTable::Stats stats = table.stats();
  CHECK(refused > 0 && stats.dropped == refused);
  CHECK(stats.bytes <= kBound && stats.bytes > kBound / 3);
  CHECK(stats.stacks + refused == 20'000);
}

TEST(a_full_table_keeps_what_it_has) {
  StackTable table(1 << 16);
  run_frames({frame_at(1, 1), frame_at(2, 2)});
  const uint32_t known = stack_here(table);
  run_frames({frame_at(3, 3)});
  stack_here(table);
  for (int32_t i = 0; table.stats().dropped == 0; ++i) {
    run_frames({frame_at(100 + static_cast<uintptr_t>(i), i)});
    stack_here(table);
  }
  table.code_destroyed(reinterpret_cast<const void*>(3));  // every key is new from here
  run_frames({frame_at(1, 1), frame_at(2, 2)});
  CHECK(known != 0 && stack_here(table) == known);
}

TEST(names_of_usual_length_fit_into_a_full_table) {
  // GIVEN a table that is full of code objects
  folder_of_files = std::string(100, '/');
  StackTable table(1 << 18);
  std::vector<uint32_t> stacks;
  for (uintptr_t code = 1000; table.stats().dropped == 0; ++code) {
    run_frames({frame_at(code, 1)});
    stacks.push_back(stack_here(table));
  }
  stacks.pop_back();  // this stack had no room
  folder_of_files.clear();
  // THEN each code object has its names
  CHECK(stacks.size() > 100);
  for (const uint32_t id : stacks) {
    CHECK(name_of(table, id)[0] == 'f' && filename_of(table, id).size() > 100);
  }
  CHECK(table.stats().bytes <= table.stats().max_bytes);
}

TEST(a_deep_stack_of_few_functions_fits) {
  StackTable table(1 << 16);
  std::vector<RawFrame> frames(1000, frame_at(1, 1));
  run_frames(frames);
  CHECK(stack_here(table, 1000) != 0);
}

// Threads look up and intern the same stacks while code objects are destroyed.
TEST(stacks_from_many_threads) {
  StackTable table(8 << 20);
  on_threads(5, [&table](uint64_t t) {
    for (int32_t i = 0; t < 4 && i < 4000; ++i) {
      run_frames({frame_at(100 + t, i % 50), frame_at(1, i % 300)});
      const uint32_t id = stack_here(table);
      CHECK(id != 0);
      CHECK(frames_of(table, id).innermost_first.size() == 2);
      CHECK(frame_of(table, id, 0).offset == i % 50);
      CHECK(frame_of(table, id, 1).offset == i % 300);
    }
    for (uintptr_t code = 1000; t == 4 && code < 1200; ++code) {
      run_frames({frame_at(code, 1)});
      stack_here(table);
      table.code_destroyed(reinterpret_cast<const void*>(code));
    }
  });
  CHECK(table.stats().codes == 205);
}

// Otherwise a walk remembered from one table would have the same id in the next table.
TEST(each_table_has_its_own_seeds) {
  StackTable first(1 << 20), second(1 << 20);
  CHECK(first.seed() != second.seed());
  run_frames({frame_at(1, 10)});
  stack_here(first);
  const uint64_t before = first.seed();
  first.code_destroyed(frame_at(1, 10).code);
  CHECK(first.seed() != before && first.seed() != second.seed());
}

TEST(a_hidden_frame_is_left_out) {
  StackTable table(1 << 20);
  run_frames({frame_at(1, 1), frame_at(3, 3)});
  const uint32_t shown = stack_here(table);
  RawFrame hidden = frame_at(2, 2);
  hidden.is_hidden = true;
  run_frames({frame_at(1, 1), hidden, frame_at(3, 3)});
  CHECK(stack_here(table) == shown);
  const CallTree::Frames frames = frames_of(table, stack_here(table, 2));
  CHECK(frames.innermost_first.size() == 2 && !frames.is_truncated);
  run_frames({frame_at(1, 1), frame_at(2, 2), frame_at(3, 3)});  // it has come to a traceable instruction
  CHECK(stack_here(table) != shown && frames_of(table, stack_here(table)).innermost_first.size() == 3);
}

// Two walks with one hash, from which only the frames tell them apart.
TEST(stacks_with_one_hash_are_distinguished) {
  std::map<uint32_t, int32_t> offsets;
  int32_t first = 0, second = 0;
  for (int32_t offset = 0; first == second; ++offset) {
    const uint32_t hash = PathHash::extended(PathHash::of_base(PathBase::number(32, false)), (uint64_t{1} << 32) + static_cast<uint64_t>(offset));
    const auto [known, is_new] = offsets.emplace(hash, offset);
    if (!is_new) {
      first = known->second;
      second = offset;
    }
  }
  StackTable table(1 << 20);
  run_frames({frame_at(1, first)});
  const uint32_t one = stack_here(table);
  run_frames({frame_at(1, second)});
  const uint32_t other = stack_here(table);
  CHECK(one != other && frame_of(table, one, 0).offset == first);
  CHECK(frame_of(table, other, 0).offset == second);
}
