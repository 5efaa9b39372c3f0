// Tests of windows, steps and phases of sessions, and of the contents of their snapshots.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "cpu_events.h"
#include "fake_frame_walk.h"
#include "session/session.h"
#include "snapshot/snapshot.h"
#include "threads.h"
#include "view/view.h"

using namespace pytracer;

namespace {

SessionOptions options(uint32_t entries) {
  return {{PYTRACER_CPU_DEVICE}, entries, 32, 1 << 20, Context::all};
}

std::vector<uint64_t> addresses(const View& view) {
  std::vector<uint64_t> found;
  for (const Event& event : copy_events(view.devices[0])) found.push_back(event.address);
  return found;
}

// The steps of a view's events.
std::vector<uint32_t> steps(const View& view) {
  std::vector<uint32_t> found;
  const DeviceView& device = view.devices[0];
  auto next = device.steps.begin();
  uint32_t step = 0;
  for (uint64_t sequence = device.first; sequence < device.capture.end; ++sequence) {
    for (; next != device.steps.end() && next->begin <= sequence; ++next) step = next->number;
    found.push_back(step);
  }
  return found;
}

std::string told(const View& view, int64_t begin_ns) {
  int64_t last_ns = begin_ns;
  std::string text;
  for (const Annotation& each : annotations(view, begin_ns)) {
    CHECK(each.time_ns >= last_ns);
    last_ns = each.time_ns;
    text += each.is_end ? " -" : " +";
    text += each.is_step ? "step " + std::to_string(each.number)
                         : std::string(Phases::instance().name(static_cast<uint16_t>(each.number)));
  }
  return text;
}
std::string told(const View& view) {
  return told(view, WallClock::to_wall_ns(*view.clock, view.begin));
}

void pass(const char* phase) {
  const uint64_t entry = Phases::instance().enter(phase).entry;
  alloc(1 << 20);
  release(1 << 20);
  Phases::instance().leave(entry);
}

std::string file(const View& view) {
  MemorySink sink;
  write_snapshot(view, {""}, sink);
  return sink.bytes;
}

// The bytes as a file has them.
template <class Write>
std::string pickled(const char* key, Write write_value) {
  MemorySink sink;
  PickleWriter out(sink);
  out.string(key);
  write_value(out);
  out.flush();
  return sink.bytes;
}
std::string recorded(int64_t events) {
  return pickled("recorded", [&](PickleWriter& out) { out.integer(events); });
}
std::string steps_begin_at(const std::vector<std::pair<int64_t, int64_t>>& steps_and_indices) {
  return pickled("steps", [&](PickleWriter& out) {
    out.list();
    for (const auto& [step, index] : steps_and_indices) {
      out.list();
      out.integer(step);
      out.integer(index);
      out.append_items();
    }
    out.append_items();
  });
}

bool has(const std::string& bytes, const std::string& part) {
  return bytes.find(part) != std::string::npos;
}

using Addresses = std::vector<uint64_t>;
using Steps = std::vector<uint32_t>;

}  // namespace

TEST(each_window_has_its_own_events) {
  Started reference(options(100)), session(options(100));
  session.begin_step(1);
  session.start();
  alloc(64);
  const View first = session.end_window(true, 2);
  alloc(128);
  release(64);
  const View second = session.end_window(false, 3);  // waits for the turn
  alloc(192);
  release(128);
  const View waited = session.end_window(true, 4);
  alloc(256);
  session.stop();
  CHECK(addresses(first) == Addresses({64}) && steps(first) == Steps({1}));
  CHECK(addresses(second) == Addresses({128, 64}) && steps(second) == Steps({2, 2}));
  CHECK(addresses(waited).empty() && !has_events(waited) && has_events(second));
  const View last = session.view();
  CHECK(addresses(last) == Addresses({256}) && steps(last) == Steps({4}));
  // A block allocated during the wait is known.
  CHECK(last.devices[0].capture.blocks.size() == 2 && last.devices[0].capture.blocks[0].address == 192);
  // Other sessions are not affected.
  CHECK(addresses(reference.view()) == Addresses({64, 128, 64, 192, 128, 256}));
  CHECK(steps(reference.view()) == Steps({0, 0, 0, 0, 0, 0}));
}

TEST(each_window_has_its_own_counts) {
  Started session(options(100));
  release(64);
  release(128);
  const View first = session.end_window(true, 2);
  release(192);
  const View second = session.end_window(true, 3);
  CHECK(first.devices[0].capture.counts.unknown_frees == 2);
  CHECK(second.devices[0].capture.counts.unknown_frees == 1);
  CHECK(session.view().devices[0].capture.counts.unknown_frees == 0);
}

TEST(only_recording_sessions_take_turns) {
  Session session(options(100));
  CHECK(session.end_window(true, 1).devices.empty() && !session.recording());
  session.start();
  alloc(64);
  session.stop();
  for (int i = 0; i < 2; ++i) {
    CHECK(addresses(session.end_window(true, 2)) == Addresses({64}) && !session.recording());
  }
  session.start();
  alloc(128);
  CHECK(addresses(session.view()) == Addresses({128}) && steps(session.view()) == Steps({0}));
}

TEST(a_turn_ends_a_pause) {
  run_frames({frame_at(1, 1)});
  for (const bool history : {true, false}) {
    Started session(options(100));
    session.pause();
    alloc(64);
    CHECK(addresses(session.end_window(history, 2)).empty());
    alloc(128);
    const View view = session.view();
    CHECK(addresses(view) == (history ? Addresses({128}) : Addresses()));
    CHECK(steps(view) == (history ? Steps({2}) : Steps()));
    const std::vector<LiveBlock>& live = view.devices[0].capture.blocks;
    CHECK(live.size() == 2 && live[0].stack == 0 && live[1].stack != 0);
  }
}

TEST(windows_under_fire_share_no_event_and_lose_none) {
  Started reference(options(1 << 20)), session(options(1 << 20));
  session.start();
  std::deque<Repeated> threads;
  for (uint64_t t = 1; t <= 3; ++t) {
    threads.emplace_back([t, i = uint64_t{0}]() mutable {
      if (++i >= 100'000) return std::this_thread::yield();  // or the ring would be too small
      alloc((t << 32) | (i * 64));
      release((t << 32) | (i * 64));
    });
  }
  uint64_t end = 0;
  for (uint32_t step = 2; step < 200; ++step) {
    const DeviceView window = session.end_window(true, step).devices[0];
    CHECK(window.begin == end);
    end = window.capture.end;
    CHECK(window.steps.back().number == (step == 2 ? 0 : step - 1));
  }
  threads.clear();
  session.stop();
  reference.stop();
  const DeviceView last = session.view().devices[0];
  CHECK(last.begin == end && last.capture.end == reference.view().devices[0].capture.end);
}

TEST(steps_are_bounded) {
  Started session(options(1 << 16));
  for (uint32_t step = 1; step <= 17'000; ++step) {
    session.begin_step(step);
    alloc(uint64_t{step} * 64);
  }
  const Steps found = steps(session.view());
  CHECK(found.size() == 17'000 && found.front() == 0 && found.back() == 17'000);
  CHECK(found[17'000 - 16'384 - 1] == 0 && found[17'000 - 16'384] == 17'001 - 16'384);
}

TEST(the_file_of_a_phase_counts_its_own_events) {
  Phases& phases = Phases::instance();
  Session session(options(100));
  session.begin_step(1);
  session.start();
  alloc(64);
  const Phases::Entered role = phases.enter("role");
  alloc(128);
  std::thread([&] {
    const uint64_t other = phases.enter("other").entry;
    alloc(192);
    session.begin_step(2);
    alloc(256);
    phases.leave(other);
  }).join();
  alloc(320);
  phases.leave(role.entry);
  const std::string written = file(session.view(true, role.phase));
  CHECK(has(written, recorded(2)) && has(written, steps_begin_at({{1, 0}, {2, 2}})));
  CHECK(has(file(session.view()), recorded(5)));
  const Phases::Entered idle = phases.enter("idle");
  phases.leave(idle.entry);
  CHECK(has_events(session.view()) && !has_events(session.view(true, idle.phase)));
}

TEST(annotations_have_the_steps_and_phases_of_the_window) {
  Phases& phases = Phases::instance();
  const uint64_t early = phases.enter("early").entry;
  Started session(options(100));
  const uint64_t inner = phases.enter("inner").entry;
  alloc(64);
  phases.leave(inner);
  phases.leave(early);
  session.begin_step(1);
  alloc(128);
  const uint64_t open = phases.enter("open").entry;
  const View first = session.end_window(true, 2);
  alloc(192);
  phases.leave(open);
  session.begin_step(3);
  alloc(256);
  const View second = session.end_window(true, 4);
  // Phases in progress at a window's beginning begin with it; phases that continue do not end.
  CHECK(told(first) == " +early +inner -inner -early +step 1 +open -step 1");
  CHECK(told(second) == " +open +step 2 -open -step 2 +step 3 -step 3");
}

TEST(if_phases_end_together_the_inner_one_ends_first) {
  Started session(options(100));
  std::thread([] {
    alloc(64);
    Phases::instance().enter("outer");
    Phases::instance().enter("inner");
  }).join();
  CHECK(told(session.view()) == " +outer +inner -inner -outer");
}

TEST(events_after_a_stop_are_not_recorded) {
  Phases& phases = Phases::instance();
  Session session(options(100));
  session.begin_step(1);
  session.start();
  const uint64_t open = phases.enter("open").entry;
  alloc(64);
  session.begin_step(2);
  alloc(128);
  session.stop();
  phases.leave(open);
  const uint64_t late = phases.enter("late").entry;
  CHECK(told(session.view()) == " +step 1 +open -step 1 +step 2");
  session.clear();
  CHECK(addresses(session.view()).empty() && session.view().begin == session.view().end);
  // The next recording has nothing of the previous one.
  session.begin_step(3);
  session.start();
  alloc(192);
  const View next = session.view();
  CHECK(addresses(next) == Addresses({192}) && steps(next) == Steps({3}));
  CHECK(next.steps.size() == 1 && told(next) == " +late");
  phases.leave(late);
}

TEST(phases_that_ended_before_the_window_are_left_out) {
  Session session(options(100));
  session.start(false);
  pass("without history");
  session.start();
  pass("first");
  CHECK(told(session.view()) == " +first -first");
  session.clear();
  pass("second");
  CHECK(told(session.view()) == " +second -second");
  session.pause();
  pass("paused");
  session.start();
  CHECK(told(session.view()).empty());
}

TEST(phases_that_ended_before_the_first_kept_event_are_left_out) {
  Phases& phases = Phases::instance();
  Session session(options(2));
  session.begin_step(1);
  session.start();
  const uint64_t open = phases.enter("open").entry;
  phases.leave(phases.enter("early").entry);
  alloc(64);
  session.begin_step(2);
  alloc(128);
  release(64);
  phases.leave(open);
  const View view = session.view();
  const DeviceView& device = view.devices[0];
  const int64_t begin_ns = WallClock::to_wall_ns(*device.clock, copy_events(device)[0].ticks);
  CHECK(told(view, begin_ns) == " +open +step 2 -open");
  CHECK(has(file(view), "step 2") && !has(file(view), "step 1") && !has(file(view), "early"));
}
