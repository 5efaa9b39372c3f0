// Accelerators: cuts at the markers of an allocator that is made up here.
#include <chrono>
#include <cstdio>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "annotations.h"
#include "check.h"
#include "owner.h"
#include "recorder.h"
#include "snapshot.h"

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
  int16_t devices = 2;                        // that it marks
  std::function<void()> after_markers = [] {};  // still inside its snapshot()
  bool fails = false;
  int64_t time = 1000;  // of its clock
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

const pytracer_hook g_hook = {PYTRACER_HOOK_ABI, "cuda", nullptr, &allocator_time, &take_snapshot,
                              nullptr};

// A recording owner of the made-up allocator.
struct Recording {
  explicit Recording(std::vector<int> devices = {0, 1})
      : owner({std::move(devices), 1000, 32, 1 << 20, Context::all}) {
    g_allocator = Allocator{};
    Recorder::instance().set_accelerator(g_hook);
    owner.start();
  }
  ~Recording() { g_allocator = Allocator{}; }
  Owner owner;
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
  // Other threads go on while the state is taken: on device 0 after its marker.
  g_allocator.after_markers = [] {
    std::thread([] {
      record(0, PYTRACER_FREE_REQUESTED, 4096, 500);
      record(0, PYTRACER_FREE_COMPLETED, 4096, 500);
      record(0, PYTRACER_SNAPSHOT, 0, 0);  // someone else's
      record(0, PYTRACER_ALLOC, 8192, 1);
    }).join();
  };
  const View view = recording.owner.view();
  const DeviceView& first = view.devices[0];
  CHECK(first.cut.end == 2 && copy_events(first)[1].action == PYTRACER_SNAPSHOT);
  CHECK(first.cut.live.size() == 1 && first.cut.live[0].address == 4096 && first.cut.used);
  CHECK(view.devices[1].cut.end == 1 && !view.devices[1].cut.used);
  CHECK(view.state->segments.size() == 1 && view.state->blocks.size() == 2);
  CHECK(view.state->segments[0].about.total_size == 2048 && view.state->problem.empty());
  g_allocator.after_markers = [] {};
  const DeviceView later = recording.owner.view().devices[0];
  CHECK(later.cut.end == 7 && later.cut.live.size() == 1 && later.cut.live[0].address == 8192);
}

TEST(markers_that_nobody_asked_for_do_not_cut) {
  Recording recording;
  for (int i = 0; i < 3; ++i) record(1, PYTRACER_SNAPSHOT, 0, 0);
  record(1, PYTRACER_ALLOC, 64, 1);
  record(1, PYTRACER_FREE_COMPLETED, 64, 1);
  // Had one of them frozen the table, the block would have stayed in it.
  CHECK(recording.owner.view().devices[1].cut.live.empty());
  CHECK(recording.owner.events().devices[1].cut.end == 6);
}

TEST(a_device_without_a_marker_is_cut_all_the_same) {
  Recording recording({0, 1, PYTRACER_CPU_DEVICE});
  g_allocator.devices = 1;
  record(1, PYTRACER_ALLOC, 64, 1);
  record(PYTRACER_CPU_DEVICE, PYTRACER_ALLOC, 64, 1);
  for (int i = 0; i < 3; ++i) {
    const View view = recording.owner.view();
    CHECK(view.devices[1].cut.live.size() == 1 && view.devices[2].cut.live.size() == 1);
    CHECK(view.devices[0].cut.end == static_cast<uint64_t>(i) + 1);
  }
}

TEST(an_allocator_that_fails_leaves_events_and_a_reason) {
  Recording recording;
  record(0, PYTRACER_ALLOC, 4096, 500);
  g_allocator.fails = true;
  const View view = recording.owner.view();
  CHECK(view.state->problem == "no mood" && view.state->segments.empty());
  CHECK(view.devices[0].cut.live.size() == 1 && view.devices[0].cut.end == 2);
  g_allocator.fails = false;
  CHECK(recording.owner.view().state->segments.size() == 1);
  g_allocator.fails = true;
  recording.owner.stop();
  CHECK(recording.owner.view().state->problem == "no mood");
}

TEST(events_without_a_state_cost_no_marker) {
  Recording recording;
  record(0, PYTRACER_ALLOC, 64, 1);
  CHECK(recording.owner.events().devices[0].cut.end == 1);
  CHECK(recording.owner.events().devices[0].cut.end == 1);
  CHECK(recording.owner.events().state == nullptr);
}

TEST(an_accelerators_events_are_recorded_as_they_come) {
  Recording recording;
  record(0, PYTRACER_FREE_REQUESTED, 64, 8);  // older than the recording
  record(0, PYTRACER_FREE_COMPLETED, 64, 8);
  record(0, PYTRACER_ALLOC, 64, 8);
  record(0, PYTRACER_ALLOC, 64, 9);
  const DeviceView device = recording.owner.view().devices[0];
  const std::vector<Event> events = copy_events(device);
  CHECK(events.size() == 5 && device.cut.counts.unknown_frees == 1);
  CHECK(events[1].size == 8 && events[3].action == PYTRACER_ALLOC && events[3].size == 9);
  CHECK(device.cut.live.size() == 1 && device.cut.live[0].size == 9);
}

TEST(segments_know_who_allocated_them) {
  Recording recording;
  record(0, PYTRACER_SEGMENT_ALLOC, 64, 8);
  record(0, PYTRACER_SEGMENT_MAP, 4096, 8);
  CHECK(recording.owner.view().devices[0].cut.segments.size() == 2);
  record(0, PYTRACER_SEGMENT_FREE, 64, 8);
  record(0, PYTRACER_SEGMENT_UNMAP, 4096, 8);
  CHECK(recording.owner.view().devices[0].cut.segments.empty());
  CHECK(recording.owner.view().devices[0].cut.live.empty());
}

TEST(events_keep_the_time_their_allocator_gave_them) {
  Recording recording;
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  record(0, PYTRACER_ALLOC, 64, 1, allocator_time());
  record(0, PYTRACER_ALLOC, 128, 1, allocator_time());
  const View view = recording.owner.view();
  const auto after = std::chrono::system_clock::now().time_since_epoch();
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(events[1].ticks == events[0].ticks + 1000);
  const int64_t first = WallClock::to_wall_ns(*view.devices[0].clock, events[0].ticks);
  const int64_t second = WallClock::to_wall_ns(*view.devices[0].clock, events[1].ticks);
  CHECK(std::chrono::nanoseconds(before).count() - 1'000'000'000 < first && first <= second);
  CHECK(second <= std::chrono::nanoseconds(after).count());
}

TEST(an_accelerators_snapshot_has_its_segments_pools_and_labels) {
  Recording recording;
  const pytracer_labels labels = {"0/0", "mine", "inside"};
  record(0, PYTRACER_ALLOC, 4096, 500, 0, &labels, 7);
  const pytracer_labels broken = {"", "not \xff text", ""};
  record(0, PYTRACER_ALLOC, 8192, 500, 0, &broken, 7);
  const View view = recording.owner.view();
  view.stacks->resolve();
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
  Owner& owner = recording.owner;
  record(0, PYTRACER_ALLOC, 64, 1);
  record(1, PYTRACER_ALLOC, 64, 1);
  // After its marker device 0 is in the next window, though the turn is still under way.
  g_allocator.after_markers = [] { record(0, PYTRACER_OOM, 128, 1); };
  const View first = owner.turn(true, 2);
  g_allocator.after_markers = [] {};
  const View second = owner.turn(true, 3);
  CHECK(actions(first.devices[0]) == Actions({PYTRACER_ALLOC, PYTRACER_SNAPSHOT}));
  CHECK(actions(first.devices[1]) == Actions({PYTRACER_ALLOC, PYTRACER_SNAPSHOT}));
  CHECK(actions(second.devices[0]) == Actions({PYTRACER_OOM, PYTRACER_SNAPSHOT}));
  CHECK(actions(second.devices[1]) == Actions({PYTRACER_SNAPSHOT}));
  for (const DeviceView& device : second.devices) {
    CHECK(is_only_step(2, device));
    for (const Event& event : copy_events(device)) {
      CHECK(second.begin <= event.ticks && event.ticks <= second.end);
    }
  }
  CHECK(has_events(second) && !has_events(owner.view()));  // markers do not count
}

TEST(a_window_begins_without_memory_for_the_one_before) {
  for (const bool history : {true, false}) {
    Recording recording;
    record(0, PYTRACER_ALLOC, 64, 1);
    record(0, PYTRACER_FREE_COMPLETED, 128, 1);  // unknown
    const int64_t before = now_ticks();
    g_allocator.after_markers = [] { throw std::bad_alloc(); };
    bool failed = false;
    try {
      recording.owner.turn(history, 2);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    g_allocator.after_markers = [] {};
    record(0, PYTRACER_OOM, 192, 1);
    const View view = recording.owner.view();
    CHECK(failed && view.begin >= before && has_events(view) == history);
    const DeviceView& device = view.devices[0];
    CHECK(actions(device) == (history ? Actions({PYTRACER_OOM, PYTRACER_SNAPSHOT}) : Actions()));
    CHECK(device.steps.size() == 1 && device.steps[0].number == 2);
    CHECK(device.cut.counts.unknown_frees == 0 && device.cut.live.size() == 1);
  }
}

TEST(every_time_is_told_by_the_clock_that_it_is_of) {
  const int64_t before = wall_ns() - 1'000'000'000;
  Recording recording({0, PYTRACER_CPU_DEVICE});
  const uint64_t phase = Phases::instance().enter("timed").entry;
  record(0, PYTRACER_ALLOC, 64, 1, allocator_time());
  record(PYTRACER_CPU_DEVICE, PYTRACER_ALLOC, 64, 1);
  Phases::instance().leave(phase);
  const View view = recording.owner.view();
  const int64_t after = wall_ns();
  std::vector<int64_t> times;
  for (const DeviceView& device : view.devices) {
    times.push_back(WallClock::to_wall_ns(*device.clock, copy_events(device)[0].ticks));
  }
  for (const Annotation& each : annotations_of(view, before)) times.push_back(each.time_ns);
  CHECK(times.size() == 4);
  for (const int64_t time : times) CHECK(before < time && time <= after);
}

TEST(a_device_that_lost_its_beginning_does_not_hide_what_another_has) {
  for (const bool has_events : {true, false}) {  // of markers alone it has not
    Recording recording({0, PYTRACER_CPU_DEVICE});
    recording.owner.change(2, 32, Context::all);
    if (has_events) record(0, PYTRACER_ALLOC, 64, 1);
    Phases::instance().leave(Phases::instance().enter("early").entry);
    for (uint64_t i = 1; i <= 3; ++i) record(PYTRACER_CPU_DEVICE, PYTRACER_ALLOC, i * 64, 1);
    const View view = recording.owner.view();
    MemorySink sink;
    write_snapshot(view, {""}, sink);
    CHECK(view.devices[0].overwritten() == 0 && view.devices[1].overwritten() == 1);
    CHECK((sink.bytes.find("early") != std::string::npos) == has_events);
  }
}
