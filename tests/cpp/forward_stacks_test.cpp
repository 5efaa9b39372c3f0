// Allocations in autograd nodes get the stack of the forward call that made the node, or none.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu_events.h"
#include "fake_frame_walk.h"
#include "record/node_types.h"
#include "record/thread_slot.h"
#include "session/registry.h"
#include "session/session.h"
#include "memory_bound.h"
#include "stack_here.h"
#include "threads.h"
#include "snapshot/parameter_names.h"
#include "view/view.h"

using namespace pytracer;

namespace {

constexpr const char* kMul = "N5torch8autograd9generated12MulBackward0E";
constexpr const char* kSum = "N5torch8autograd9generated12SumBackward0E";
constexpr const char* kLog = "N5torch8autograd9generated12LogBackward0E";
constexpr const char* kTanh = "N5torch8autograd9generated13TanhBackward0E";
constexpr const char* kTanhBackward = "N5torch8autograd9generated21TanhBackwardBackward0E";
constexpr const char* kBmm = "N5torch8autograd9generated12BmmBackward0E";
constexpr const char* kSelect = "N5torch8autograd9generated15SelectBackward0E";
constexpr const char* kCustom = "N5torch8autograd6PyNodeE";
constexpr const char* kAccumulate = "N5torch8autograd14AccumulateGradE";
constexpr uint64_t kBytes = 256;  // of every output

// What torch would know on this thread.
struct Autograd {
  uint64_t thread = 0, next = 0;
  const char* type = nullptr;  // of the running node
  uint64_t node_thread = 0, node = 0;
  bool runs_kernel = true;
  bool is_on_cpu = true;
  bool has_output = true, changes_shape = false, has_two_gradients = true;
  uint64_t parameter = 0;  // where the parameter of the node is
};
thread_local Autograd t_autograd;
std::atomic<int> g_asked{0};  // which node runs

void read(pytracer_autograd_state* state) {
  const Autograd& now = t_autograd;
  ++g_asked;
  *state = {now.thread, now.next, now.type, now.type, now.node_thread, now.node};
}
uint64_t next_sequence() { return t_autograd.next; }
const char* running_type() {
  ++g_asked;
  return t_autograd.type;
}
int32_t runs_kernel() { return t_autograd.runs_kernel; }
int32_t has_output(const void*, int32_t* is_on_cpu) {
  *is_on_cpu = t_autograd.is_on_cpu;
  return t_autograd.has_output;
}
int32_t has_two_gradients(const void*) { return t_autograd.has_two_gradients; }
int32_t changes_shape(const void*) { return t_autograd.changes_shape; }
uint64_t accumulates_into(const void*, int32_t* device) {
  *device = PYTRACER_CPU_DEVICE;
  return t_autograd.parameter;
}
const pytracer_autograd kAutograd = {PYTRACER_AUTOGRAD_ABI, &read,       &next_sequence,
                                     &running_type,         &runs_kernel, &has_output,
                                     &changes_shape,        &has_two_gradients,
                                     &accumulates_into};

struct Recording : Session {
  explicit Recording(uint32_t entries = 1000, uint64_t stack_bytes = 1 << 20,
                     bool forward_stacks = true)
      : Session({{PYTRACER_CPU_DEVICE}, entries, 32, stack_bytes, Context::all, forward_stacks}) {
    Recorder::instance().set_walking(true);
    Registry::instance().set_autograd(kAutograd);
    start();
    static uint64_t threads = 0;
    t_autograd = {++threads, 0};
    alloc(kFirst);  // the first allocation of a thread is never known to be the first of a call
    release(kFirst);
  }
  ~Recording() { t_autograd = {}; }

  static constexpr uint64_t kFirst = 1 << 30;
};

// Makes a node on this thread, and allocates at a line: as an operator does.
void call(int32_t line, uint64_t address, uint64_t size = kBytes) {
  run_frames({frame_at(1, line), frame_at(2, 0)});
  ++t_autograd.next;
  alloc(address, size);
}
// Runs a node of `thread`, which allocates. Its own frames are those given.
void backward(const char* type, uint64_t thread, uint64_t node, uint64_t address,
              std::vector<RawFrame> own = {}) {
  const Autograd before = t_autograd;
  run_frames(std::move(own));
  t_autograd.type = type;
  t_autograd.node_thread = thread;
  t_autograd.node = node;
  alloc(address, kBytes);
  t_autograd.type = nullptr;
  t_autograd.node_thread = before.node_thread;
}

struct Shown {
  size_t own_frames;
  std::optional<int32_t> line;  // of the forward call
  std::string node;
  bool is_exact;
  bool operator==(const Shown& other) const {
    return own_frames == other.own_frames && line == other.line && node == other.node &&
           is_exact == other.is_exact;
  }
};

Shown shown(const View& view, uint32_t id) {
  const StackTable& stacks = *view.stacks;
  Shown result{0, std::nullopt, "", false};
  if (id == 0) return result;
  const Backward backward = stacks.generation_of(id)->backward(id);
  result.node = NodeTypes::instance().name(backward.node_type);
  result.is_exact = backward.is_exact;
  if (backward.own != 0) result.own_frames = frames_of(stacks, backward.own).innermost_first.size();
  if (backward.forward != 0) result.line = frame_of(stacks, backward.forward, 0).offset;
  return result;
}
Shown of_block(const View& view, uint64_t address) {
  for (const LiveBlock& block : view.devices[0].capture.blocks) {
    if (block.address == address) return shown(view, block.stack);
  }
  std::abort();
}
// Runs a node, and returns what is shown of its allocation.
Shown of_node(Session& session, const char* type, uint64_t thread, uint64_t node,
              std::vector<RawFrame> own = {}) {
  static uint64_t address = 1 << 20;
  backward(type, thread, node, address += 1 << 10, std::move(own));
  return of_block(session.view(), address);
}

}  // namespace

TEST(both_events_of_a_free_name_the_node_that_freed) {
  Recording recording;
  Started session({{0}, 100, 32, 1 << 20, Context::all, true});
  const auto on_device = [](uint8_t action, uint64_t address) { record(action, address, kBytes, 0); };
  run_frames({frame_at(1, 1), frame_at(kEngineCode, 2)});
  for (const uint64_t address : {64, 128}) on_device(PYTRACER_ALLOC, address);
  t_autograd.type = kMul;
  on_device(PYTRACER_FREE_REQUESTED, 64);
  on_device(PYTRACER_FREE_COMPLETED, 64);
  on_device(PYTRACER_FREE_REQUESTED, 128);
  t_autograd.type = nullptr;
  run_frames({frame_at(3, 3)});  // completed by a later call, outside of the node
  on_device(PYTRACER_FREE_COMPLETED, 128);
  const View view = session.events();
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(events.size() == 5 && events[2].action == kFreeAtOnce);
  CHECK(shown(view, events[2].stack) == (Shown{2, std::nullopt, "MulBackward0", false}));
  CHECK(shown(view, events[3].stack).node == "MulBackward0");
  CHECK(shown(view, events[4].stack) == (Shown{1, std::nullopt, "", false}));
  run_frames({});
}

TEST(a_new_thread_has_nothing_of_the_last_free_of_one_that_has_ended) {
  Recording recording;
  Started session({{0}, 100, 32, 1 << 20, Context::all, true});
  const auto on_device = [](uint8_t action) {
    run_frames({frame_at(1, 1), frame_at(2, 2)});
    record(action, 64, kBytes, 0);
  };
  on_device(PYTRACER_ALLOC);
  // GIVEN a thread that ends after it has requested a free in a node
  const ThreadSlot* slots[2];
  std::thread([&] {
    t_autograd.type = kMul;
    on_device(PYTRACER_FREE_REQUESTED);
    slots[0] = thread_slot();
  }).join();
  // WHEN the next one, which has its slot, completes the free at the same line, outside of the node
  std::thread([&] {
    on_device(PYTRACER_FREE_COMPLETED);
    slots[1] = thread_slot();
  }).join();
  // THEN its event is its own
  CHECK(slots[0] == slots[1]);
  const View view = session.events();
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(events.size() == 3);
  CHECK(shown(view, events[1].stack) == (Shown{2, std::nullopt, "MulBackward0", false}));
  CHECK(shown(view, events[2].stack) == (Shown{2, std::nullopt, "", false}));
  run_frames({});
}

TEST(a_node_has_the_stack_of_the_first_allocation_after_it_was_made) {
  Recording recording(8);
  const uint64_t forward = t_autograd.thread;
  // GIVEN two operators; the second allocates twice
  call(10, 1 << 10);
  call(20, 2 << 10);
  run_frames({frame_at(1, 30), frame_at(2, 0)});
  alloc(3 << 10, kBytes);
  // WHEN their nodes run on another thread without frames
  std::thread([&] {
    t_autograd = {1000, 0};
    backward(kBmm, forward, 1, 4 << 10);
    backward(kBmm, forward, 0, 5 << 10);
    backward(kAccumulate, forward, UINT64_MAX, 6 << 10);
  }).join();
  // THEN their allocations have the stacks and the names of the nodes
  const auto check = [&] {
    const View view = recording.view();
    CHECK((of_block(view, 2 << 10) == Shown{2, std::nullopt, "", false}));
    CHECK((of_block(view, 4 << 10) == Shown{0, 20, "BmmBackward0", true}));
    CHECK((of_block(view, 5 << 10) == Shown{0, 10, "BmmBackward0", true}));
    CHECK((of_block(view, 6 << 10) == Shown{0, std::nullopt, "AccumulateGrad", false}));
  };
  check();
  // AND so they have once the ring has forgotten them
  for (uint64_t i = 0; i < 20; ++i) alloc((100 + i) << 10);
  check();
}

TEST(a_parameter_names_only_nodes_that_ran_after_its_block_was_allocated) {
  Recording recording(64);
  const auto accumulate = [](uint64_t parameter, uint64_t address) {
    t_autograd.parameter = parameter;
    backward(kAccumulate, t_autograd.thread, UINT64_MAX, address);
    t_autograd.parameter = 0;
  };
  // GIVEN two parameters, of which the second one is in the place of an earlier one
  constexpr uint64_t kFirst = 64 << 10, kSecond = 65 << 10;
  alloc(kFirst, 512);
  alloc(kSecond, 512);
  accumulate(kFirst, 1 << 10);
  accumulate(kSecond, 2 << 10);
  release(kSecond);
  alloc(kSecond, 512);
  accumulate(kSecond, 3 << 10);
  accumulate(kSecond + 8, 4 << 10);  // no parameter begins there
  // WHEN the owners are read
  const auto owner = [](uint64_t address, const char* name) {
    return Owner{address, 512, PYTRACER_CPU_DEVICE, Category::parameter, Rule::module, name};
  };
  const std::vector<Owner> owners = {owner(kFirst, "first"), owner(kSecond, "second")};
  const auto read = std::make_shared<Owners>(recording.mark(), owners,
                                             std::vector<Holder>{}, Owners::Missing{}, "");
  View view = recording.view();
  view.owners = read;
  const ParameterNames names(view);
  // THEN each node that is later than its parameter's block is named, and no other
  const auto name = [&](uint64_t address) -> std::string {
    for (const LiveBlock& block : view.devices[0].capture.blocks) {
      if (block.address != address) continue;
      const std::string* found = names.of_block(block, PYTRACER_CPU_DEVICE);
      return found != nullptr ? *found : "";
    }
    std::abort();
  };
  CHECK(name(1 << 10) == "first");
  CHECK(name(2 << 10).empty());
  CHECK(name(3 << 10) == "second");
  CHECK(name(4 << 10).empty());
}

TEST(what_is_not_certain_is_not_exact) {
  Recording recording;
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);             // node 0
  call(20, 2 << 10);             // node 1
  t_autograd.runs_kernel = false;
  call(30, 3 << 10);  // node 2: not in an operator
  t_autograd.runs_kernel = true;
  t_autograd.next += 10;  // nodes 3 to 12 allocate nothing
  call(40, 4 << 10);      // node 13
  CHECK((of_node(recording, kLog, forward, 0) == Shown{0, 10, "LogBackward0", true}));
  CHECK((of_node(recording, kSelect, forward, 0) == Shown{0, 10, "SelectBackward0", false}));
  CHECK((of_node(recording, kCustom, forward, 0) == Shown{0, 10, "PyNode", false}));
  CHECK((of_node(recording, kMul, forward, 0) == Shown{0, 10, "MulBackward0", true}));
  CHECK((of_node(recording, kSum, forward, 1) == Shown{0, 20, "SumBackward0", true}));
  t_autograd.has_output = false;
  CHECK((of_node(recording, kSum, forward, 0) == Shown{0, 10, "SumBackward0", false}));
  t_autograd.has_output = true;
  t_autograd.is_on_cpu = false;
  CHECK((of_node(recording, kSum, forward, 13) == Shown{0, 40, "SumBackward0", false}));
  t_autograd.is_on_cpu = true;
  t_autograd.has_two_gradients = false;
  CHECK((of_node(recording, kMul, forward, 1) == Shown{0, 20, "MulBackward0", false}));
  CHECK((of_node(recording, kSum, forward, 2) == Shown{0, 30, "SumBackward0", false}));
  CHECK((of_node(recording, kSum, forward, 3) == Shown{0, 30, "SumBackward0", false}));
  CHECK((of_node(recording, kSum, forward, 10) == Shown{0, 30, "SumBackward0", false}));
  // More than 8 nodes away, and a thread that made no nodes: unknown.
  CHECK((of_node(recording, kSum, forward, 11) == Shown{0, std::nullopt, "SumBackward0", false}));
  CHECK((of_node(recording, kSum, forward, 13) == Shown{0, 40, "SumBackward0", true}));
  CHECK((of_node(recording, kSum, forward, 14) == Shown{0, 40, "SumBackward0", false}));
  CHECK((of_node(recording, kSum, forward, 22) == Shown{0, std::nullopt, "SumBackward0", false}));
  CHECK((of_node(recording, kSum, forward + 1000, 0) == Shown{0, std::nullopt, "SumBackward0", false}));
}

TEST(an_operator_that_may_be_called_in_place_is_not_exact_unless_it_keeps_its_argument) {
  Recording recording;
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);
  CHECK((of_node(recording, kTanh, forward, 0) == Shown{0, 10, "TanhBackward0", false}));
  CHECK((of_node(recording, kLog, forward, 0) == Shown{0, 10, "LogBackward0", true}));
  CHECK((of_node(recording, kTanhBackward, forward, 0) == Shown{0, 10, "TanhBackwardBackward0", true}));
  t_autograd.changes_shape = true;
  CHECK((of_node(recording, kTanh, forward, 0) == Shown{0, 10, "TanhBackward0", true}));
}

TEST(a_call_that_was_not_seen_from_its_begin_is_not_exact) {
  Recording recording;
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);
  // GIVEN a pause, in which a node was made
  recording.pause();
  call(20, 2 << 10);
  recording.start();
  // WHEN the next allocation comes without a new node
  run_frames({frame_at(1, 30)});
  alloc(3 << 10, kBytes);
  CHECK((of_node(recording, kBmm, forward, 0) == Shown{0, 10, "BmmBackward0", true}));
  // THEN the node is not exact
  CHECK((of_node(recording, kBmm, forward, 1) == Shown{0, 30, "BmmBackward0", false}));
}

TEST(the_first_call_after_a_pause_is_exact_if_an_allocation_came_between) {
  Recording recording;
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);
  recording.pause();
  recording.start();
  alloc(2 << 10);
  call(20, 3 << 10);
  CHECK((of_node(recording, kBmm, forward, 0) == Shown{0, 10, "BmmBackward0", true}));
  CHECK((of_node(recording, kBmm, forward, 1) == Shown{0, 20, "BmmBackward0", true}));
}

TEST(nodes_made_in_a_node_pass_its_stack_on_unless_python_code_runs) {
  Recording recording;
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);  // node 0
  const std::vector<RawFrame> engine = {frame_at(kEngineCode, 5), frame_at(2, 0)};
  const std::vector<RawFrame> recomputed = {frame_at(1, 70), frame_at(kEngineCode, 5)};
  // WHEN node 0 makes node 1, below the engine's frames, and node 1 makes node 2, without frames
  t_autograd.next = 2;
  CHECK((of_node(recording, kBmm, forward, 0, engine) == Shown{2, 10, "BmmBackward0", true}));
  t_autograd.next = 3;
  CHECK((of_node(recording, kBmm, forward, 1) == Shown{0, 10, "BmmBackward0", true}));
  // AND node 0 recomputes a call, which makes node 3
  t_autograd.next = 4;
  CHECK((of_node(recording, kBmm, forward, 0, recomputed) == Shown{2, 10, "BmmBackward0", true}));
  // THEN nodes 1 and 2 have the stack of node 0, and node 3 has that of the recomputation
  CHECK((of_node(recording, kBmm, forward, 2) == Shown{0, 10, "BmmBackward0", true}));
  CHECK((of_node(recording, kBmm, forward, 3) == Shown{0, 70, "BmmBackward0", true}));
}

TEST(the_first_thread_is_asked_for_its_node_only_in_a_call_of_the_engine) {
  Recording recording;
  const auto asked = [](std::vector<RawFrame> frames) {
    const int before = g_asked;
    run_frames(std::move(frames));
    ++t_autograd.next;
    alloc(64);
    release(64);
    return g_asked - before;
  };
  const std::vector<RawFrame> plain = {frame_at(1, 1), frame_at(2, 2)};
  CHECK(asked(plain) == 0);
  CHECK(asked({frame_at(1, 1), frame_at(kEngineCode, 4)}) == 2);
  CHECK(asked(std::vector<RawFrame>(40, frame_at(3, 3))) == 2);  // more than 32, which are compared
  CHECK(asked({}) == 2);
  std::thread([&] { CHECK(asked(plain) == 2); }).join();
}

TEST(a_table_keeps_the_last_nodes_of_a_thread) {
  Recording recording(10);
  const uint64_t forward = t_autograd.thread;
  for (uint32_t node = 0; node < ForwardStacks::kNodes + 100; ++node) {
    call(static_cast<int32_t>(node % 1000), 1 << 10);
    release(1 << 10);
  }
  CHECK((of_node(recording, kBmm, forward, 99) == Shown{0, std::nullopt, "BmmBackward0", false}));
  CHECK((of_node(recording, kBmm, forward, 100) == Shown{0, 100, "BmmBackward0", true}));
  constexpr uint32_t kLast = ForwardStacks::kNodes + 99;
  CHECK((of_node(recording, kBmm, forward, kLast) == Shown{0, kLast % 1000, "BmmBackward0", true}));
}

TEST(threads_that_have_ended_keep_their_nodes_as_long_as_there_is_room) {
  Recording recording(10'000);
  constexpr int kThreads = 3 * ForwardStacks::kTables;
  for (int i = 0; i < kThreads; ++i) {
    std::thread([&] {
      t_autograd = {5000 + static_cast<uint64_t>(i), 0};
      alloc(Recording::kFirst);
      release(Recording::kFirst);
      call(100 + i, static_cast<uint64_t>(1 + i) << 10);
    }).join();
  }
  int known = 0;
  for (int i = 0; i < kThreads; ++i) {
    const uint64_t address = static_cast<uint64_t>(1000 + i) << 10;
    backward(kBmm, 5000 + static_cast<uint64_t>(i), 0, address);
    const Shown shown = of_block(recording.view(), address);
    CHECK(!shown.line || *shown.line == 100 + i);
    CHECK(shown.is_exact == shown.line.has_value());
    known += shown.is_exact;
  }
  // The table of the main thread and those of other tests are not free.
  CHECK(known >= static_cast<int>(ForwardStacks::kTables) / 2);
}

TEST(a_collection_of_stacks_makes_no_forward_stack_wrong) {
  // GIVEN a table that is collected many times; the digits of a node's number are in its frames
  Recording recording(50, 1 << 17);
  const uint64_t forward = t_autograd.thread;
  constexpr uint64_t kEvery = 50;
  uint64_t exact = 0, runs = 0;
  for (uint64_t node = 0; node < 40'000; ++node) {
    run_stack(node);
    ++t_autograd.next;
    alloc(1 << 10, kBytes);
    release(1 << 10);
    if (node % kEvery != kEvery - 1) continue;
    // WHEN a node of some time ago runs
    const uint64_t back = node - node % 49;
    backward(kSum, forward, back, 2 << 10);
    const View view = recording.view();
    const uint32_t stack = view.devices[0].capture.blocks[0].stack;
    const Backward found = view.stacks->generation_of(stack)->backward(stack);
    release(2 << 10);
    ++runs;
    if (found.forward == 0) continue;
    // THEN it has its own stack; or that of a neighbour, where the table was full; or none
    const uint64_t number = number_of(*view.stacks, found.forward);
    CHECK(found.is_exact ? number == back : number <= back && number + 9 >= back);
    exact += found.is_exact;
  }
  CHECK(recording.stats().stacks.generations > 3);
  CHECK(exact > runs / 2 && exact < runs);
}

TEST(forward_stacks_are_right_while_threads_begin_generations) {
  // GIVEN a table with room for some thousand stacks, and threads whose stacks are ever new; the digits of
  // a stack's number are in its frames, and a block's size is 1 more than the number of its stack
  constexpr uint64_t kThreads = 3;
  Recording recording(500, 1 << 17);
  std::deque<Repeated> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, n = t * 20'000]() mutable {
      const uint64_t address = (10 + t) << 32;
      t_autograd.thread = 7000 + t;
      // WHEN one allocates in forward, then in a node of it, then outside of autograd
      run_stack(n);
      ++t_autograd.next;
      alloc(address, n + 1);
      run_stack(n + 1);
      t_autograd.type = kSum;
      t_autograd.node_thread = t_autograd.thread;
      t_autograd.node = t_autograd.next - 1;
      alloc(address + 64, n + 2);
      release(address);  // in the node
      t_autograd.type = nullptr;
      run_stack(n + 2);
      release(address + 64);
      n = (n + 1) % 60'000;
    });
  }
  // THEN each block that a view shows has its own stack, and a node's has the call's; or one has none
  uint64_t whole = 0;
  const auto generations = static_cast<uint64_t>(amount(20, 200));
  while (recording.stats().stacks.generations < generations || whole < 20) {
    const View view = recording.view();
    for (const LiveBlock& block : view.devices[0].capture.blocks) {
      if (block.stack == 0) continue;
      const Backward found = view.stacks->generation_of(block.stack)->backward(block.stack);
      if (found.own != 0) CHECK(number_of(*view.stacks, found.own) == block.size - 1);
      if (found.forward == 0 || !found.is_exact) continue;
      CHECK(number_of(*view.stacks, found.forward) == block.size - 2);
      ++whole;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(links_alone_start_a_generation) {
  // GIVEN a table with room for some 5,000 stacks, and walks that are all known
  Recording recording(100, 1 << 17);
  // WHEN many more stacks with links are recorded than fit
  for (uint64_t parameter = 1; parameter <= 12'000; ++parameter) {
    t_autograd.parameter = parameter << 20;
    backward(kAccumulate, 0, UINT64_MAX, 64, {frame_at(kEngineCode, 1)});
    release(64);
  }
  // THEN unused ones are given up, and no event lacks its stack
  const StackTable::Stats stats = recording.stats().stacks;
  CHECK(stats.generations > 3 && stats.dropped == 0);
}

TEST(without_the_option_events_have_their_own_stacks_alone) {
  Recording recording(100, 1 << 20, false);
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);
  CHECK((of_node(recording, kBmm, forward, 0) == Shown{0, std::nullopt, "", false}));
}

TEST(without_the_library_a_thread_of_autograd_is_known_by_its_name) {
  Recording recording;
  Registry::instance().set_autograd(autograd_threads);
  const auto allocate = [](const char* name, uint64_t address) {
    on_another_thread([=] {
      pthread_setname_np(pthread_self(), name);
      alloc(address, kBytes);
    });
  };
  allocate("pt_autograd_0", 1 << 10);
  allocate("pt_data_0", 2 << 10);
  const View view = recording.view();
  CHECK((of_block(view, 1 << 10) == Shown{0, std::nullopt, "backward", false}));
  CHECK((of_block(view, 2 << 10) == Shown{0, std::nullopt, "", false}));
}

TEST(a_forked_child_knows_no_nodes_of_its_parent) {
  Recording recording;
  const uint64_t forward = t_autograd.thread;
  call(10, 1 << 10);
  in_a_child([&] {
    Started session({{PYTRACER_CPU_DEVICE}, 100, 32, 1 << 20, Context::all, true});
    call(20, 2 << 10);  // the child's first allocation
    call(30, 3 << 10);
    CHECK((of_node(session, kBmm, forward, 0) == Shown{0, std::nullopt, "BmmBackward0", false}));
    CHECK((of_node(session, kBmm, forward, 2) == Shown{0, 30, "BmmBackward0", true}));
  });
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space
TEST(a_fork_needs_no_address_space) {
  // GIVEN forward stacks, the number of a parameter, and no address space
  Recording recording;
  CHECK(ParameterNumbers::instance()->number_of(64, PYTRACER_CPU_DEVICE) != 0);
  const MemoryBound none(RLIMIT_AS, 4096);
  // WHEN the process forks
  in_a_child([] {
    // THEN the child has forgotten the numbers, and can give them out anew
    ParameterNumbers& numbers = *ParameterNumbers::instance();
    CHECK(numbers.count() == 0 && numbers.number_of(128, PYTRACER_CPU_DEVICE) == 1);
    CHECK(numbers.number_of(64, PYTRACER_CPU_DEVICE) == 2);
  });
  none.lift();
}
#endif
