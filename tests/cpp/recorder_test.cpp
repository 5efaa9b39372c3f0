#include "record/recorder.h"

#include <ctime>
#include <map>
#include <thread>

#include "check.h"
#include "cpu_events.h"
#include "fake_frame_walk.h"
#include "session/session.h"
#include "stack_here.h"
#include "threads.h"
#include "snapshot/snapshot.h"
#include "view/view.h"
#include "record/thread_slot.h"

using namespace pytracer;

namespace {

SessionOptions options(uint32_t entries, Context context = Context::all) {
  return {{PYTRACER_CPU_DEVICE}, entries, 32, 1 << 20, context};
}

bool hook_enabled() { return *Recorder::instance().enabled_flag(true) != 0; }

// Checks that the view's state equals a replay of its events, and that the events have no gap.
void check_consistent(const DeviceView& device) {
  const std::vector<Event> events = copy_events(device);
  CHECK(device.first == device.begin && events.size() == device.capture.end - device.first);
  std::map<uint64_t, uint64_t> alive;
  for (const Event& event : events) {
    if (event.action == PYTRACER_ALLOC) {
      CHECK(alive.emplace(event.address, event.size()).second);
    } else {
      const auto found = alive.find(event.address);
      CHECK(found != alive.end() && found->second == event.size());
      alive.erase(found);
    }
  }
  CHECK(alive.size() == device.capture.blocks.size());
  for (const LiveBlock& block : device.capture.blocks) CHECK(alive.at(block.address) == block.size);
}

}  // namespace

TEST(nothing_is_recorded_without_a_session) {
  alloc(1, 1);
  CHECK(!hook_enabled());
  {
    Session session(options(10));
    CHECK(!hook_enabled() && !session.recording());
    session.start();
    CHECK(hook_enabled() && session.recording());
    alloc(64, 8);
    session.stop();
    CHECK(!hook_enabled());
    alloc(128, 8);
    CHECK(session.view().devices[0].capture.end == 1);
    CHECK(session.view().devices[0].capture.blocks.size() == 1);
  }
  Started next(options(10));
  CHECK(next.view().devices[0].capture.end == 0 && next.view().devices[0].capture.blocks.empty());
}

TEST(a_ring_shrinks_when_its_largest_owner_is_gone) {
  Started small(options(4));
  const auto ring_bytes = [&] { return small.stats().devices[0].max_ring_bytes; };
  // GIVEN a session that has enlarged the ring, and a reader of it
  auto large = std::make_unique<Session>(options(1000));
  large->start();
  for (uint64_t i = 1; i <= 100; ++i) alloc(i * 64, i);
  const View view = large->view();
  large->stop();
  CHECK(ring_bytes() == 1000 * sizeof(Event));  // the stopped session still shows its events
  // WHEN the session is gone
  large.reset();
  // THEN the ring has the size of the other one, with its newest events
  CHECK(ring_bytes() == 4 * sizeof(Event));
  std::vector<Event> events = copy_events(small.view().devices[0]);
  CHECK(events.size() == 4 && events[0].size() == 97 && events[3].size() == 100);
  alloc(101 * 64, 101);
  events = copy_events(small.view().devices[0]);
  CHECK(events.size() == 4 && events[0].size() == 98 && events[3].size() == 101);
  // AND the reader still has all of its own
  CHECK(copy_events(view.devices[0]).size() == 100);
  // WHEN a session asks for less, THEN the ring shrinks too
  small.change(2, 32, Context::all);
  CHECK(ring_bytes() == 2 * sizeof(Event) && copy_events(small.view().devices[0])[0].size() == 100);
}

TEST(a_ring_without_an_owner_is_small) {
  // GIVEN a device that no session records any longer, while another one is recorded
  Started cpu(options(4));
  const auto on_device = [](uint32_t entries) {
    SessionOptions changed = options(entries);
    changed.devices = {0};
    return changed;
  };
  auto large = std::make_unique<Session>(on_device(1000));
  large->start();
  large.reset();
  // WHEN it is recorded again, THEN the ring has the size that is asked for
  Started small(on_device(4));
  CHECK(small.stats().devices[0].max_ring_bytes == 5 * sizeof(Event));
}

TEST(context_decides_which_stacks_are_seen) {
  for (const Context context : {Context::none, Context::state, Context::alloc, Context::all}) {
    Started session(options(10, context));
    run_frames({frame_at(1, 1)});
    alloc(64, 1);
    alloc(128, 1);
    run_frames({frame_at(2, 2)});
    release(64);
    const DeviceView device = session.view().devices[0];
    const std::vector<Event> events = copy_events(device);
    const uint32_t at_alloc = visible_stack(events[0], context);
    const uint32_t at_free = visible_stack(events[2], context);
    CHECK((at_alloc != 0) == (context == Context::alloc || context == Context::all));
    CHECK((at_free != 0) == (at_alloc != 0));
    CHECK((at_free == at_alloc) == (context != Context::all));
    CHECK((device.capture.blocks[0].stack != 0) == (context != Context::none));
  }
}

TEST(a_session_without_history_sees_blocks_and_no_events) {
  Recorder::instance().set_walking(true);
  run_frames({frame_at(1, 1)});
  Session quiet(options(10));
  quiet.start(false);
  CHECK(hook_enabled() && quiet.recording());
  alloc(64, 1);
  alloc(64, 2);  // a free of an unknown block is no event either
  DeviceView seen = quiet.view().devices[0];
  CHECK(seen.capture.end == 0 && seen.capture.blocks.size() == 1 && seen.capture.blocks[0].stack != 0);
  {
    Session loud(options(10));  // has no effect on the first session
    loud.start();
    alloc(128, 1);
    CHECK(copy_events(loud.view().devices[0]).size() == 1);
    seen = quiet.view().devices[0];
    CHECK(copy_events(seen).empty() && seen.overwritten() == 0 && seen.capture.blocks.size() == 2);
    CHECK(quiet.stats().devices[0].recorded == 0);
    quiet.stop();
  }
  alloc(256, 1);
  CHECK(copy_events(quiet.view().devices[0]).empty());
  CHECK(quiet.view().devices[0].capture.blocks.size() == 2);
  CHECK(!hook_enabled());
}

TEST(a_session_may_keep_its_events_without_history) {
  Started session(options(10));
  alloc(64, 1);
  session.start(false, true);
  alloc(128, 1);
  DeviceView seen = session.view().devices[0];
  CHECK(copy_events(seen).size() == 1 && copy_events(seen)[0].address == 64);
  CHECK(seen.capture.blocks.size() == 2 && seen.overwritten() == 0);
  CHECK(session.stats().devices[0].recorded == 1);
  session.start(true, true);
  alloc(256, 1);
  seen = session.view().devices[0];
  CHECK(copy_events(seen).size() == 2 && copy_events(seen)[1].address == 256);
  {
    session.start(false, true);
    Started other(options(10));
    for (uint64_t i = 1; i <= 10; ++i) alloc(4096 * i, 1);
    seen = session.view().devices[0];  // others have overwritten its events
    CHECK(copy_events(seen).empty() && seen.overwritten() == 2);
  }
  session.clear();
  session.start(true, true);  // nothing is kept that has been cleared
  CHECK(copy_events(session.view().devices[0]).empty());
  alloc(512, 1);
  session.start(false, true);
  session.stop();
  CHECK(copy_events(session.view().devices[0]).size() == 1);
  session.start(true, true);
  CHECK(copy_events(session.view().devices[0]).empty());
  alloc(1024, 1);
  session.pause();
  session.start(true, true);
  CHECK(copy_events(session.view().devices[0]).empty());
}

TEST(a_paused_session_keeps_its_blocks) {
  run_frames({frame_at(1, 1)});
  Session session(options(10));
  session.pause();
  CHECK(!session.recording() && !hook_enabled());
  session.start();
  alloc(64, 1);
  alloc(128, 1);
  session.pause();
  session.pause();
  CHECK(hook_enabled() && session.recording());
  release(128);
  alloc(256, 1);  // in the pause: known, without a stack
  DeviceView seen = session.view().devices[0];
  CHECK(copy_events(seen).empty() && seen.capture.blocks.size() == 2);
  CHECK(seen.capture.blocks[0].stack != 0 && seen.capture.blocks[1].stack == 0);
  CHECK(seen.capture.end == 2);  // nothing was written to the ring
  {
    Started other(options(10));
    alloc(512, 1);  // an event and a stack of another session
  }
  session.start();
  release(256);
  alloc(1024, 1);
  seen = session.view().devices[0];
  const std::vector<Event> events = copy_events(seen);
  CHECK(events.size() == 2 && events[0].size() == 1 && events[1].address == 1024);
  CHECK(seen.capture.blocks.size() == 3 && seen.capture.counts.unknown_frees == 0);
  for (const LiveBlock& block : seen.capture.blocks) CHECK(block.stack != 0);
  const View blocks = session.view(false);
  CHECK(copy_events(blocks.devices[0]).empty() && blocks.devices[0].capture.blocks.size() == 3);
  session.start();  // changes nothing
  CHECK(copy_events(session.view().devices[0]).size() == 2);
  session.stop();
  session.pause();
  CHECK(!session.recording() && !hook_enabled());
  CHECK(copy_events(session.view().devices[0]).size() == 2);
}

TEST(options_may_change_without_losing_events) {
  Recorder::instance().set_walking(true);
  run_frames({frame_at(1, 1), frame_at(2, 2), frame_at(3, 3)});
  Session session(options(2, Context::none));
  session.change(3, 32, Context::none);  // before the start
  session.start();
  for (uint64_t i = 1; i <= 4; ++i) alloc(i * 64, 1);
  CHECK(copy_events(session.view().devices[0]).size() == 3);
  session.change(8, 2, Context::all);
  for (uint64_t i = 5; i <= 8; ++i) alloc(i * 64, 1);
  const View view = session.view();
  const std::vector<Event> events = copy_events(view.devices[0]);
  CHECK(events.size() == 7 && events[2].stack == 0 && events[3].stack != 0);
  CHECK(frames_of(*view.stacks, events[3].stack).innermost_first.size() == 2);
  session.change(1, 2, Context::all);
  CHECK(copy_events(session.view().devices[0]).size() == 1);
}

TEST(events_carry_phase_and_size_of_freed_blocks) {
  Started session(options(10));
  thread_slot()->phase = 3;
  alloc(64, 99);
  thread_slot()->phase = 0;
  release(64);
  release(4096);  // older than the recording
  const DeviceView device = session.view().devices[0];
  const std::vector<Event> events = copy_events(device);
  CHECK(events.size() == 2 && events[0].phase == 3);
  CHECK(events[1].size() == 99 && events[1].phase == 0);
  CHECK(device.capture.counts.unknown_frees == 1);
}

TEST(a_free_tells_the_step_of_its_allocation) {
  Started session(options(100));
  uint32_t step = 1;
  session.begin_step(step, true);
  const auto begin_steps = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) session.begin_step(++step);
  };
  const auto birth_of_freed = [&](uint64_t address) {
    release(address);
    const DeviceView device = session.view().devices[0];
    return birth_step(device, copy_events(device).back(), step);
  };
  begin_steps(2);
  alloc(64);
  begin_steps(2);
  alloc(128);
  begin_steps(2);
  CHECK(birth_of_freed(64) == 3);
  // Of many steps, an earlier one is told. One that is too long ago is not.
  begin_steps(30'000);
  const uint32_t early = birth_of_freed(128);
  CHECK(early >= 1 && early <= 5);
  alloc(64);
  begin_steps(40'000);
  CHECK(birth_of_freed(64) == 0);
  alloc(128);
  const uint32_t born = step;
  begin_steps(100);
  const uint32_t late = birth_of_freed(128);
  CHECK(late <= born && late + 64 > born);
  CHECK(copy_events(session.view().devices[0]).back().size() == 8);
}

TEST(only_a_thread_that_runs_no_python_inherits_a_phase) {
  Started session(options(10, Context::none));
  run_frames({frame_at(1, 1)});
  const Phases::Entered entered = Phases::instance().enter("module");
  // GIVEN a thread of autograd, which has no frames, except while a node runs Python code
  std::thread autograd([] {
    run_frames({});
    alloc(64, 1);
    run_frames({frame_at(2, 1)});
    alloc(128, 1);
  });
  autograd.join();
  // AND a thread of the program, in no phase, which gets the same slot
  std::thread prefetch([] {
    run_frames({frame_at(3, 1)});
    alloc(192, 1);
  });
  prefetch.join();
  Phases::instance().leave(entered.entry);
  // THEN autograd's thread inherits the phase, and the program's does not
  const std::vector<Event> events = copy_events(session.view().devices[0]);
  CHECK(events.size() == 3 && entered.phase != 0);
  CHECK(events[0].phase == entered.phase && events[1].phase == entered.phase);
  CHECK(events[2].phase == 0);
}

TEST(cuts_are_consistent_under_fire) {
  Started session(options(1 << 21));
  std::deque<Repeated> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([t, i = uint64_t{0}]() mutable {
      if (i == 20'000) return std::this_thread::yield();  // or the ring would be too small
      run_frames({frame_at(10 + t, 1)});
      alloc((t * 1000 + i % 50 + 1) * 64, i + 1);
      if (i % 50 >= 25) release((t * 1000 + (i - 25) % 50 + 1) * 64);
      if (i % 50 == 49) {
        for (uint64_t j = 25; j < 50; ++j) release((t * 1000 + j + 1) * 64);
      }
      ++i;
    });
  }
  uint64_t seen = 0;
  for (int i = 0, cuts = amount(8, 30); i < cuts || seen < 20'000; ++i) {
    const DeviceView device = session.view().devices[0];
    check_consistent(device);
    seen = device.capture.end;
  }
  threads.clear();
  check_consistent(session.view().devices[0]);
}

// Each block is allocated by one thread and freed by another, which hands its address back. So the
// order of all events of an address is known, whichever threads wait for the log.
TEST(a_free_comes_after_its_allocation_by_another_thread) {
  Started session(options(1 << 20));
  constexpr uint64_t kThreads = 6, kSlots = 4, kBlocks = 6'000;
  std::atomic<uint64_t> slots[kSlots] = {};  // 0: its address is free; 1: it is allocated
  on_threads(kThreads, [&slots](uint64_t t) {
    for (uint64_t done = 0, slot = t; done < kBlocks; ++slot) {
      std::atomic<uint64_t>& turn = slots[slot % kSlots];
      const uint64_t address = 64 * (1 + slot % kSlots);
      uint64_t now = turn.load(std::memory_order_acquire);
      // A turn that ends in 0xff is taken: a thread records its event.
      if ((now & 0xff) == 0xff ||
          !turn.compare_exchange_strong(now, now | 0xff, std::memory_order_acquire)) {
        continue;
      }
      const bool is_allocated = (now & 1) != 0;
      if (is_allocated) {
        release(address);
      } else {
        alloc(address, done + 1);
      }
      turn.store(now ^ 1, std::memory_order_release);
      ++done;
    }
  });
  const DeviceView device = session.view().devices[0];
  CHECK(device.capture.end == kThreads * kBlocks && device.capture.counts.unknown_frees == 0);
  check_consistent(device);
  const std::vector<Event> events = copy_events(device);
  for (size_t i = 1; i < events.size(); ++i) CHECK(events[i - 1].ticks <= events[i].ticks);
}

TEST(a_reader_sees_each_event_whose_hook_has_returned) {
  Started session(options(1000));
  for (uint64_t round = 1; round <= 50; ++round) {
    std::thread other([&] { alloc(64 * round, 1); });
    other.join();
    alloc(64 * (1000 + round), 1);
    CHECK(session.events().devices[0].capture.end == 2 * round);
    CHECK(session.stats().devices[0].live_blocks == 2 * round);
  }
}

// Ring and table are captured at the same instant: one block, which is alive after odd events.
TEST(state_and_trace_agree_at_every_instant) {
  Started session(options(10));
  const Repeated writer([] {
    alloc(64, 8);
    release(64);
  });
  const uint64_t views = static_cast<uint64_t>(amount(500, 5'000));
  for (uint64_t odd = 0, even = 0; odd + even < views || odd < 100 || even < 100;) {
    const DeviceView device = session.view().devices[0];
    const bool alive = device.capture.end % 2 == 1;
    CHECK(device.capture.blocks.size() == (alive ? 1 : 0));
    ++(alive ? odd : even);
  }
}

TEST(a_snapshot_is_written_while_the_ring_is_lapped) {
  Started session(options(20'000));
  const Repeated writer([] {
    run_frames({frame_at(5, 1)});
    alloc(64, 8);
    release(64);
  });
  uint64_t laps = 0;
  for (int i = 0; i < 8 || laps < 6; ++i) {
    const View view = session.view();
    laps = view.devices[0].capture.end / 20'000;
    MemorySink sink;
    write_snapshot(view, {}, sink);
    CHECK(sink.bytes.size() > 100 && sink.bytes.back() == '.');
  }
}

TEST(stop_walking_ends_stacks_only) {
  Started session(options(100));
  const Repeated walker([] {
    run_frames({frame_at(1, 1)});
    alloc(64, 1);
    release(64);
  });
  const auto newest_after = [&](uint64_t sequence) {
    for (;;) {
      const std::vector<Event> events = copy_events(session.view().devices[0]);
      if (!events.empty() && session.view().devices[0].capture.end > sequence) return events.back();
    }
  };
  CHECK(newest_after(0).stack != 0);
  Recorder::instance().stop_walking();
  const uint64_t stopped = session.view().devices[0].capture.end;
  newest_after(stopped);
  CHECK(newest_after(stopped).stack == 0);
}

TEST(threads_end_while_sessions_come_and_go) {
  std::atomic<int> ended{0};
  std::deque<Repeated> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&ended, t] {
      on_another_thread([&] {
        run_frames({frame_at(20 + t, ended % 100)});
        alloc((t + 1) * 64, 8);
        release((t + 1) * 64);
      });
      ++ended;
    });
  }
  for (int i = 0; i < 100 || ended < 100; ++i) {
    Started session(options(100));
    const View view = session.view();
    CHECK(copy_events(view.devices[0]).size() <= 100);
  }
}

#if !defined(__SANITIZE_THREAD__)  // it does not support threads in a forked child
TEST(a_forked_child_starts_off_and_empty) {
  Started parents(options(100));
  alloc(64, 1);
  const Repeated busy([] {  // the forks happen while other threads are in the recorder
    run_frames({frame_at(1, 1)});
    alloc(128, 1);
    release(128);
  });
#if !defined(__SANITIZE_ADDRESS__)  // whose allocator a fork may leave locked
  const Repeated controlling([&] {
    Started other(options(1000));
    parents.view();
    parents.begin_step(1);
  });
#endif
  for (int i = 0; i < 100; ++i) {
    in_a_child([&] {
      CHECK(!hook_enabled() && !parents.recording() && !parents.is_ours());
      release(64);
      parents.clear();
      parents.begin_step(1);
      CHECK(parents.end_window(true, 2).devices.empty() && !parents.recording() && !hook_enabled());
      parents.stop();
      CHECK(parents.view().devices.empty());
      Started own(options(10));
      own.change(20, 32, Context::all);  // the parent's session, which has more, is none here
      CHECK(own.stats().devices[0].max_ring_bytes == 20 * sizeof(Event));
      const int64_t before = std::time(nullptr);
      alloc(256, 5);
      const View view = own.view();
      CHECK(view.devices[0].capture.end == 1 && view.devices[0].capture.blocks.size() == 1);
      const std::vector<Event> events = copy_events(view.devices[0]);
      const int64_t wall_ns = WallClock::to_wall_ns(*view.devices[0].clock, events[0].ticks);
      const int64_t seconds = wall_ns / 1'000'000'000;
      CHECK(before <= seconds && seconds <= std::time(nullptr) + 1);
    });
  }
  CHECK(parents.recording() && parents.view().devices[0].capture.end > 0);
}
#endif
