// Tests of accelerators: captures at the markers of an allocator that this file imitates.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "check.h"
#include "fake_frame_walk.h"
#include "memory_bound.h"
#include "record/device_log_record.h"
#include "session/session.h"
#include "stack_here.h"
#include "threads.h"
#include "record/recorder.h"
#include "record/thread_slot.h"
#include "snapshot/snapshot.h"
#include "view/view.h"

using namespace pytracer;

namespace {

void record(int16_t device, uint8_t action, uint64_t address, uint64_t size, int64_t ticks = 0,
            const pytracer_labels* labels = nullptr, uint64_t pool = 0) {
  pytracer_event event{};
  event.device = device;
  event.action = action;
  event.address = address;
  event.size = size;
  event.ticks = ticks;
  event.labels = labels;
  event.pool_low = pool;
  Recorder::record(&event);
}

struct Allocator {
  int16_t devices = 2;                          // the devices that it marks
  std::function<void()> after_markers = [] {};  // called inside its snapshot()
  bool fails = false;
  int64_t time = 1000;  // the time of its clock
  int64_t workspaces = 0;  // how many it keeps; -1: another thread changes them
};
Allocator g_allocator;

int64_t allocator_time() { return g_allocator.time += 1000; }

int32_t take_snapshot(const pytracer_state_sink* sink, char* message, size_t size) {
  for (int16_t device = 0; device < g_allocator.devices; ++device) {
    record(device, PYTRACER_SNAPSHOT, 0, 0);
  }
  g_allocator.after_markers();
  if (g_allocator.fails) {
    std::snprintf(message, size, "no mood");
    return PYTRACER_FAILED;
  }
  const pytracer_block blocks[] = {{512, 500, PYTRACER_ACTIVE_ALLOCATED},
                                   {1536, 0, PYTRACER_INACTIVE}};
  pytracer_segment segment{};
  segment.address = 4096;
  segment.total_size = 2048;
  segment.block_count = 2;
  segment.blocks = blocks;
  sink->segment(sink->context, &segment);
  for (const char* group : {static_cast<const char*>(nullptr), "group"}) {
    const pytracer_setting settings[] = {{group, "boolean", nullptr, 0, 1, PYTRACER_BOOLEAN},
                                         {group, "real", nullptr, 0.5, 0, PYTRACER_REAL},
                                         {group, "text", "words", 0, 0, PYTRACER_TEXT}};
    for (const pytracer_setting& setting : settings) sink->setting(sink->context, &setting);
  }
  const pytracer_statistics statistics = {4096, 512, 3, 2, 1, 7, 0.5, 0};
  sink->statistics(sink->context, &statistics);
  return PYTRACER_DONE;
}

int64_t read_workspaces(pytracer_workspace* found, int64_t room) {
  for (int64_t i = 0; i < std::min(g_allocator.workspaces, room); ++i) {
    found[i] = {static_cast<uint64_t>(4096 + i), 1, i % 2 == 1};
  }
  return g_allocator.workspaces;
}

const pytracer_hook g_hook = {PYTRACER_HOOK_ABI, "cuda", nullptr, &allocator_time, &take_snapshot,
                              nullptr, &read_workspaces};

// A recording session of the imitated allocator.
struct Recording {
  explicit Recording(std::vector<int> devices = {0, 1})
      : session({std::move(devices), 1000, 32, 1 << 20, Context::all}) {
    g_allocator = Allocator{};
    Registry::instance().set_hook(g_hook);
    session.start();
  }
  ~Recording() { g_allocator = Allocator{}; }
  Session session;
};

std::vector<uint8_t> actions(const DeviceView& device) {
  std::vector<uint8_t> found;
  for (const Event& event : copy_events(device)) found.push_back(event.action);
  return found;
}
using Actions = std::vector<uint8_t>;

bool is_only_step(uint32_t number, const DeviceView& device) {
  return device.steps.size() == 1 && device.steps[0].number == number &&
         device.steps[0].begin == device.begin;
}

int64_t wall_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TEST(an_accelerator_is_cut_at_its_marker) {
  Recording recording;
  record(0, PYTRACER_ALLOC, 4096, 500);
  // Other threads continue while the state is taken: on device 0 after its marker.
  g_allocator.after_markers = [] {
    std::thread([] {
      record(0, PYTRACER_FREE_REQUESTED, 4096, 500);
      record(0, PYTRACER_FREE_COMPLETED, 4096, 500);
      record(0, PYTRACER_SNAPSHOT, 0, 0);  // a marker of another snapshot
      record(0, PYTRACER_ALLOC, 8192, 1);
    }).join();
  };
  const View view = recording.session.view();
  const DeviceView& first = view.devices[0];
  CHECK(first.capture.end == 1 && copy_events(first)[0].action == PYTRACER_ALLOC);
  CHECK(first.capture.blocks.size() == 1 && first.capture.blocks[0].address == 4096 && first.capture.used);
  CHECK(view.devices[1].capture.end == 0 && !view.devices[1].capture.used);
  CHECK(view.state->segments.size() == 1 && view.state->blocks.size() == 2);
  CHECK(view.state->segments[0].about.total_size == 2048 && view.state->problem.empty());
  g_allocator.after_markers = [] {};
  const DeviceView later = recording.session.view().devices[0];
  CHECK(later.capture.end == 5 && later.capture.blocks.size() == 1 && later.capture.blocks[0].address == 8192);
  CHECK(copy_events(later)[1].action == PYTRACER_SNAPSHOT);  // the first view's
}

TEST(the_last_entries_of_each_device_are_kept) {
  Recording recording;
  recording.session.change(4096, 32, Context::all);
  for (uint64_t i = 1; i <= 1000; ++i) {
    record(0, PYTRACER_ALLOC, i * 4096, 500);
    record(0, PYTRACER_FREE_REQUESTED, i * 4096, 500);
    record(0, PYTRACER_FREE_COMPLETED, i * 4096, 500);
  }
  record(1, PYTRACER_ALLOC, 4096, 500);
  const View all = recording.session.view();
  CHECK(accelerator_entries(all) == 3001 && all.devices[0].overwritten() == 0);
  const auto kept = [&](uint64_t most) {
    View view = all;
    keep_last_entries(view, most);
    CHECK(view.devices[1].first == (most == 0 ? 1 : 0));
    CHECK(view.devices[0].overwritten() == view.devices[0].first);
    return 2000 - view.devices[0].first;
  };
  CHECK(kept(0) == 0 && kept(1) == 0 && kept(2) == 1 && kept(3) == 2 && kept(4) == 2);
  CHECK(kept(5) == 3 && kept(1500) == 1000 && kept(2999) == 1999 && kept(3000) == 2000);
  CHECK(kept(UINT64_MAX) == 2000);
}

TEST(workspaces_are_read_as_far_as_the_hook_can) {
  Recording recording;
  Registry& registry = Registry::instance();
  CHECK(registry.workspaces().found.empty() && registry.workspaces().unread == 0);
  g_allocator.workspaces = 3;
  const Registry::Workspaces some = registry.workspaces();
  CHECK(some.found.size() == 3 && some.unread == 0);
  CHECK(some.found[1].address == 4097 && some.found[1].device == 1 && some.found[1].is_lt == 1);
  g_allocator.workspaces = 5000;
  CHECK(registry.workspaces().found.size() == 4096 && registry.workspaces().unread == 904);
  g_allocator.workspaces = -1;
  CHECK(registry.workspaces().found.empty() && registry.workspaces().unread == 1);
  pytracer_hook without = g_hook;
  without.workspaces = nullptr;
  registry.set_hook(without);
  CHECK(registry.workspaces().found.empty() && registry.workspaces().unread == 0);
  registry.set_hook(g_hook);
}

TEST(unrequested_markers_begin_no_capture) {
  Recording recording;
  for (int i = 0; i < 3; ++i) record(1, PYTRACER_SNAPSHOT, 0, 0);
  record(1, PYTRACER_ALLOC, 64, 1);
  record(1, PYTRACER_FREE_COMPLETED, 64, 1);
  // If a marker had frozen the table, the block would still be in it.
  CHECK(recording.session.view().devices[1].capture.blocks.empty());
  CHECK(recording.session.events().devices[1].capture.end == 6);
}

TEST(a_device_without_a_marker_is_cut_too) {
  Recording recording({0, 1, PYTRACER_CPU_DEVICE});
  g_allocator.devices = 1;
  record(1, PYTRACER_ALLOC, 64, 1);
  record(PYTRACER_CPU_DEVICE, PYTRACER_ALLOC, 64, 1);
  for (int i = 0; i < 3; ++i) {
    const View view = recording.session.view();
    CHECK(view.devices[1].capture.blocks.size() == 1 && view.devices[2].capture.blocks.size() == 1);
    CHECK(view.devices[0].capture.end == static_cast<uint64_t>(i));
  }
}

TEST(an_allocator_that_fails_leaves_events_and_a_reason) {
  Recording recording;
  record(0, PYTRACER_ALLOC, 4096, 500);
  g_allocator.fails = true;
  const View view = recording.session.view();
  CHECK(view.state->problem == "no mood" && view.state->segments.empty());
  CHECK(view.devices[0].capture.blocks.size() == 1 && view.devices[0].capture.end == 1);
  g_allocator.fails = false;
  CHECK(recording.session.view().state->segments.size() == 1);
  g_allocator.fails = true;
  recording.session.stop();
  CHECK(recording.session.view().state->problem == "no mood");
}

TEST(events_without_a_state_need_no_marker) {
  Recording recording;
  record(0, PYTRACER_ALLOC, 64, 1);
  CHECK(recording.session.events().devices[0].capture.end == 1);
  CHECK(recording.session.events().devices[0].capture.end == 1);
  CHECK(recording.session.events().state == nullptr);
}

TEST(an_accelerators_events_are_recorded_as_they_come) {
  Recording recording;
  record(0, PYTRACER_FREE_REQUESTED, 64, 8);  // older than the recording
  record(0, PYTRACER_FREE_COMPLETED, 64, 8);
  record(0, PYTRACER_ALLOC, 64, 8);
  record(0, PYTRACER_ALLOC, 64, 9);
  const DeviceView device = recording.session.view().devices[0];
  const std::vector<Event> events = copy_events(device);
  CHECK(events.size() == 3 && device.capture.counts.unknown_frees == 1);
  CHECK(events[0].size() == 8 && events[2].action == PYTRACER_ALLOC && events[2].size() == 9);
  CHECK(device.capture.blocks.size() == 1 && device.capture.blocks[0].size == 9);
}

TEST(threads_that_meet_on_an_accelerator_lose_no_event) {
  Recording recording;
  constexpr uint64_t kPairs = 30'000;
  const auto run = [](uint64_t first) {
    for (uint64_t i = 0; i < kPairs; ++i) {
      record(0, PYTRACER_ALLOC, first + 512 * (i % 100), 512);
      record(0, PYTRACER_FREE_COMPLETED, first + 512 * (i % 100), 512);
    }
  };
  on_threads(2, [&](uint64_t thread) { run(thread << 28 | 1 << 20); });
  for (const Session::DeviceStats& device : recording.session.stats().devices) {
    if (device.device == 0) CHECK(device.recorded == 4 * kPairs && device.live_blocks == 0);
  }
}

TEST(a_free_that_completes_at_once_has_the_stack_of_its_request) {
  Recording recording;
  Recorder::instance().set_walking(true);
  run_frames({frame_at(1, 1), frame_at(2, 2)});
  for (const uint64_t address : {64, 128, 192}) record(0, PYTRACER_ALLOC, address, 1);
  record(0, PYTRACER_FREE_REQUESTED, 64, 1);
  record(0, PYTRACER_FREE_COMPLETED, 64, 1);
  record(0, PYTRACER_FREE_REQUESTED, 128, 1);
  record(0, PYTRACER_FREE_REQUESTED, 192, 1);
  run_frames({frame_at(1, 7), frame_at(2, 2)});  // completed by a later call, from another line
  record(0, PYTRACER_FREE_COMPLETED, 192, 1);
  record(0, PYTRACER_FREE_COMPLETED, 128, 1);
  const View view = recording.session.view();
  const std::vector<Event> events = copy_events(view.devices[0]);
  const uint32_t first = events[0].stack;
  CHECK(first != 0 && events[3].action == kFreeAtOnce && events[3].stack == first);
  const uint32_t later = events[6].stack;
  CHECK(later != 0 && later != first && events[7].stack == later);
  for (size_t i = 3; i < 8; ++i) CHECK(events[i].alloc_stack == first);
  run_frames({});
}

TEST(a_free_that_completes_at_once_is_one_event) {
  Recording recording;
  const auto free = [](uint64_t address, auto between) {
    record(0, PYTRACER_ALLOC, address, 1);
    record(0, PYTRACER_FREE_REQUESTED, address, 1);
    between();
    record(0, PYTRACER_FREE_COMPLETED, address, 1);
  };
  const Actions one = {PYTRACER_ALLOC, kFreeAtOnce};
  free(64, [] {});
  const View view = recording.session.events();
  CHECK(actions(view.devices[0]) == one);
  recording.session.clear();
  // An event that a reader may have seen does not change.
  const Actions two = {PYTRACER_ALLOC, PYTRACER_FREE_REQUESTED, PYTRACER_FREE_COMPLETED};
  std::optional<View> seen;
  const std::function<void()> readers[] = {[&] { seen = recording.session.view(); },
                                           [&] { recording.session.begin_step(1); },
                                           [&] { seen = recording.session.events(); },
                                           [&] { recording.session.stats(); }};
  for (const auto& reader : readers) {
    seen.reset();
    free(64, reader);
    Actions found = actions(recording.session.events().devices[0]);
    found.erase(std::remove(found.begin(), found.end(), PYTRACER_SNAPSHOT), found.end());
    CHECK(found == two);
    if (seen) CHECK(actions(seen->devices[0])[1] == PYTRACER_FREE_REQUESTED);
    recording.session.clear();
  }
  // A session that begins between the two has the completion.
  Session longer({{0}, 5000, 32, 1 << 20, Context::all});
  free(64, [&] { longer.start(); });  // with a larger ring
  CHECK(actions(recording.session.events().devices[0]) == two);
  CHECK(actions(longer.events().devices[0]) == Actions{PYTRACER_FREE_COMPLETED});
}

TEST(a_free_is_two_events_if_anything_differs_or_comes_between) {
  Recording recording;
  Recorder::instance().set_walking(true);
  const pytracer_labels labels = {"compiled", "", ""}, other_labels = {"other", "", ""};
  const auto completed = [&](uint64_t address, const pytracer_labels* given = nullptr) {
    record(0, PYTRACER_FREE_COMPLETED, address, 1, 0, given);
  };
  // The events of a free whose request is followed by `rest`.
  const auto events_of = [&](auto rest, const pytracer_labels* given = nullptr) {
    recording.session.clear();
    thread_slot()->phase = 0;
    run_frames({frame_at(1, 1)});
    record(0, PYTRACER_ALLOC, 64, 1);
    record(0, PYTRACER_FREE_REQUESTED, 64, 1, 0, given);
    rest();
    return copy_events(recording.session.events().devices[0]);
  };
  const auto check_two = [&](const std::vector<Event>& events, size_t request, size_t completion) {
    CHECK(events[request].action == PYTRACER_FREE_REQUESTED && events[request].address == 64);
    CHECK(events[completion].action == PYTRACER_FREE_COMPLETED && events[completion].address == 64);
    CHECK(events[request].alloc_stack == events[0].stack && events[0].stack != 0);
    CHECK(events[completion].alloc_stack == events[0].stack);
  };
  // The same labels make one event, which has them.
  const std::vector<Event> one = events_of([&] { completed(64, &labels); }, &labels);
  CHECK(one.size() == 2 && one[1].action == kFreeAtOnce && one[1].metadata != 0);
  CHECK(one[1].alloc_stack == one[0].stack && one[1].size() == 1);
  // Another stack, phase or label of the completion
  check_two(events_of([&] {
              run_frames({frame_at(1, 7)});
              completed(64);
            }), 1, 2);
  check_two(events_of([&] {
              thread_slot()->phase = 3;
              completed(64);
            }), 1, 2);
  check_two(events_of([&] { completed(64, &other_labels); }, &labels), 1, 2);
  // Another event of the device between the two: of another block, or a marker
  check_two(events_of([&] {
              completed(128);
              completed(64);
            }), 1, 3);
  check_two(events_of([&] {
              record(0, PYTRACER_ALLOC, 192, 1);
              completed(64);
              completed(192);
            }), 1, 3);
  check_two(events_of([&] {
              record(0, PYTRACER_SNAPSHOT, 0, 0);
              completed(64);
            }), 1, 3);
  // An event of another device does not come between them.
  CHECK(events_of([&] {
          record(1, PYTRACER_ALLOC, 64, 1);
          completed(64);
          record(1, PYTRACER_FREE_COMPLETED, 64, 1);
        }).back().action == kFreeAtOnce);
  // A change of mode: the request is an event, the completion comes while none are recorded.
  CHECK(events_of([&] {
          recording.session.start(false, true);
          completed(64);
          recording.session.start(true, true);
        }).back().action == PYTRACER_FREE_REQUESTED);
  CHECK(recording.session.view().devices[0].capture.blocks.empty());
  // A request that nothing follows is an event, and its block is alive.
  CHECK(events_of([] {}).back().action == PYTRACER_FREE_REQUESTED);
  CHECK(recording.session.view().devices[0].capture.blocks.size() == 1);
  thread_slot()->phase = 0;
  run_frames({});
}

TEST(the_stack_of_a_request_that_waits_for_its_completion_is_renewed) {
  StackTable table(1 << 20);
  run_frames({frame_at(1, 1)});
  DeviceLog log(0, 10);
  log.set_mode(Mode::on, Context::all);
  pytracer_event request{};
  request.address = 64;
  log.record(request, PYTRACER_FREE_REQUESTED, stack_here(table), 0);
  CHECK(table.begin_generation());
  for (DeviceLog::StackScan scan; scan.part != DeviceLog::StackScan::done;) {
    log.renew_stacks(scan, table);
  }
  CHECK(table.end_generation() == StackTable::End::done);
  Event event;
  CHECK(log.ring()->copy(0, 1, &event) == 0 && table.generation_of(event.stack));
  run_frames({});
}

TEST(a_stack_is_never_one_of_an_earlier_sessions_table) {
  Recorder::instance().set_walking(true);
  run_frames({frame_at(1, 1), frame_at(2, 2)});
  {
    Recording recording;
    record(0, PYTRACER_FREE_REQUESTED, 64, 1);
  }
  Recording recording;
  record(0, PYTRACER_FREE_COMPLETED, 64, 1);
  const View view = recording.session.view();
  const uint32_t stack = copy_events(view.devices[0])[0].stack;
  CHECK(frames_of(*view.stacks, stack).innermost_first.size() == 2);
  run_frames({});
}

TEST(segments_have_the_stack_of_their_allocation) {
  Recording recording;
  record(0, PYTRACER_SEGMENT_ALLOC, 64, 8);
  record(0, PYTRACER_SEGMENT_MAP, 4096, 8);
  CHECK(recording.session.view().devices[0].capture.segments.size() == 2);
  record(0, PYTRACER_SEGMENT_FREE, 64, 8);
  record(0, PYTRACER_SEGMENT_UNMAP, 4096, 8);
  CHECK(recording.session.view().devices[0].capture.segments.empty());
  CHECK(recording.session.view().devices[0].capture.blocks.empty());
}

TEST(events_keep_the_time_their_allocator_gave_them) {
  Recording recording;
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  record(0, PYTRACER_ALLOC, 64, 1, allocator_time());
  record(0, PYTRACER_ALLOC, 128, 1, allocator_time());
  const View view = recording.session.view();
  const auto after = std::chrono::system_clock::now().time_since_epoch();
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(events[1].ticks == events[0].ticks + 1000);
  const int64_t first = WallClock::to_wall_ns(*view.devices[0].clock, events[0].ticks);
  const int64_t second = WallClock::to_wall_ns(*view.devices[0].clock, events[1].ticks);
  CHECK(std::chrono::nanoseconds(before).count() - 1'000'000'000 < first && first <= second);
  CHECK(second <= std::chrono::nanoseconds(after).count());
}

TEST(an_out_of_memory_that_is_recorded_late_has_the_time_of_the_allocators_clock) {
  Recording recording;
  record(0, PYTRACER_ALLOC, 64, 1, allocator_time());
  const int64_t in_flight = allocator_time();  // another thread's, which comes to the log too late
  Registry::instance().record_oom(0, 512, 7);
  record(0, PYTRACER_ALLOC, 96, 1, in_flight);
  record(0, PYTRACER_ALLOC, 128, 1, allocator_time());
  const View view = recording.session.view();
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(events[1].action == PYTRACER_OOM && events[1].size() == 512 && events[1].address == 7);
  CHECK(events[1].stack == 0 && events[0].ticks < in_flight && in_flight < events[1].ticks);
  CHECK(events[2].ticks == events[1].ticks && events[2].ticks < events[3].ticks);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space
TEST(a_change_without_room_for_all_rings_leaves_them_as_they_were) {
  // GIVEN two devices, and address space for one larger ring
  constexpr uint32_t kMany = 1 << 24;
  Recording recording;
  const auto sizes = [&] {
    const auto devices = recording.session.stats().devices;
    return std::pair(devices[0].max_ring_bytes, devices[1].max_ring_bytes);
  };
  const auto before = sizes();
  rlim_t used = 0;
  CHECK(std::ifstream("/proc/self/statm") >> used);
  const auto page = static_cast<rlim_t>(getpagesize());
  const MemoryBound low(RLIMIT_AS, used * page + kMany * sizeof(Event) * 3 / 2);
  if (!low.holds) return;
  // WHEN larger ones are asked for
  bool failed = false;
  try {
    recording.session.change(kMany, 32, Context::all);
  } catch (const std::exception&) {
    failed = true;
  }
  low.lift();
  // THEN none is larger
  CHECK(failed && sizes() == before);
  CHECK(recording.session.options().max_entries == 1000);
}
#endif

TEST(an_accelerators_snapshot_has_its_segments_pools_and_labels) {
  Recording recording;
  const pytracer_labels labels = {"0/0", "mine", "inside"};
  record(0, PYTRACER_ALLOC, 4096, 500, 0, &labels, 7);
  const pytracer_labels broken = {"", "not \xff text", ""};
  record(0, PYTRACER_ALLOC, 8192, 500, 0, &broken, 7);
  const View view = recording.session.view();
  MemorySink sink;
  write_snapshot(view, {"", {{0, ""}}}, sink);
  for (const char* text : {"active_allocated", "inactive", "0/0", "mine", "inside",
                           "internal_metadata", "reserved_bytes", "ooms", "memory_fraction",
                           "not ? text", "group", "words"}) {
    CHECK(sink.bytes.find(text) != std::string::npos);
  }
  CHECK(sink.bytes.find("active_pending_free") == std::string::npos);
}

TEST(a_window_ends_at_each_device_s_marker) {
  Recording recording;
  Session& session = recording.session;
  record(0, PYTRACER_ALLOC, 64, 1);
  record(1, PYTRACER_ALLOC, 64, 1);
  // After its marker device 0 is in the next window, while the turn is still in progress.
  g_allocator.after_markers = [] { record(0, PYTRACER_OOM, 128, 1); };
  const View first = session.end_window(true, 2);
  g_allocator.after_markers = [] {};
  const View second = session.end_window(true, 3);
  CHECK(actions(first.devices[0]) == Actions({PYTRACER_ALLOC}));
  CHECK(actions(first.devices[1]) == Actions({PYTRACER_ALLOC}));
  CHECK(actions(second.devices[0]) == Actions({PYTRACER_SNAPSHOT, PYTRACER_OOM}));
  CHECK(actions(second.devices[1]) == Actions({PYTRACER_SNAPSHOT}));
  for (const DeviceView& device : second.devices) {
    CHECK(is_only_step(2, device));
    for (const Event& event : copy_events(device)) {
      CHECK(second.begin <= event.ticks && event.ticks <= second.end);
    }
  }
  CHECK(has_events(second) && !has_events(session.view()));  // markers do not count as events
}

TEST(a_window_begins_without_memory_for_the_previous_one) {
  for (const bool history : {true, false}) {
    Recording recording;
    record(0, PYTRACER_ALLOC, 64, 1);
    record(0, PYTRACER_FREE_COMPLETED, 128, 1);  // a free of an unknown block
    const int64_t before = now_ticks();
    g_allocator.after_markers = [] { throw std::bad_alloc(); };
    bool failed = false;
    try {
      recording.session.end_window(history, 2);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    g_allocator.after_markers = [] {};
    record(0, PYTRACER_OOM, 192, 1);
    const View view = recording.session.view();
    CHECK(failed && view.begin >= before && has_events(view) == history);
    const DeviceView& device = view.devices[0];
    CHECK(actions(device) == (history ? Actions({PYTRACER_OOM}) : Actions()));
    CHECK(device.steps.size() == 1 && device.steps[0].number == 2);
    CHECK(device.capture.counts.unknown_frees == 0 && device.capture.blocks.size() == 1);
  }
}

TEST(every_time_is_converted_by_its_own_clock) {
  const int64_t before = wall_ns() - 1'000'000'000;
  Recording recording({0, PYTRACER_CPU_DEVICE});
  const uint64_t phase = Phases::instance().enter("timed").entry;
  record(0, PYTRACER_ALLOC, 64, 1, allocator_time());
  record(PYTRACER_CPU_DEVICE, PYTRACER_ALLOC, 64, 1);
  Phases::instance().leave(phase);
  const View view = recording.session.view();
  const int64_t after = wall_ns();
  std::vector<int64_t> times;
  for (const DeviceView& device : view.devices) {
    times.push_back(WallClock::to_wall_ns(*device.clock, copy_events(device)[0].ticks));
  }
  for (const Annotation& each : annotations(view, before)) times.push_back(each.time_ns);
  CHECK(times.size() == 4);
  for (const int64_t time : times) CHECK(before < time && time <= after);
}

TEST(a_device_that_lost_its_beginning_does_not_hide_another_devices_events) {
  for (const bool has_events : {true, false}) {  // markers alone are not events
    Recording recording({0, PYTRACER_CPU_DEVICE});
    recording.session.change(2, 32, Context::all);
    if (has_events) record(0, PYTRACER_ALLOC, 64, 1);
    Phases::instance().leave(Phases::instance().enter("early").entry);
    for (uint64_t i = 1; i <= 3; ++i) record(PYTRACER_CPU_DEVICE, PYTRACER_ALLOC, i * 64, 1);
    const View view = recording.session.view();
    MemorySink sink;
    write_snapshot(view, {""}, sink);
    CHECK(view.devices[0].overwritten() == 0 && view.devices[1].overwritten() == 1);
    CHECK((sink.bytes.find("early") != std::string::npos) == has_events);
  }
}

#if !defined(__SANITIZE_THREAD__)  // it does not support threads in a forked child
TEST(a_fork_does_not_wait_for_a_thread_in_the_allocator) {
  // GIVEN a thread that holds the control lock, and is in the allocator until the fork is over
  Recording recording;
  std::atomic<bool> inside{false}, forked{false};
  g_allocator.after_markers = [&] {
    inside = true;
    while (!forked) std::this_thread::yield();
  };
  std::thread dumping([&] { recording.session.view(); });
  while (!inside) std::this_thread::yield();
  alarm(600);
  // WHEN another thread forks
  const pid_t child = fork();
  if (child == 0) {
    alarm(600);
    // THEN the child can record, with an allocator that it must not call
    Session own({{-1, 0}, 1000, 32, 1 << 20, Context::all});
    own.start();
    record(-1, PYTRACER_ALLOC, 64, 8);
    CHECK(own.view().devices[0].capture.blocks.size() == 1);
    CHECK(recording.session.view().devices.empty());
    _exit(0);
  }
  alarm(0);
  forked = true;
  dumping.join();
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}
#endif
