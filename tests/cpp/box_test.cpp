// What is recorded into a box is found there by its reader.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "check.h"
#include "cpu_events.h"
#include "fake_frame_walk.h"
#include "restore/box_reader.h"
#include "restore/restored_stacks.h"
#include "restore/restored_view.h"
#include "session/session.h"
#include "stack_here.h"
#include "view/events.h"

using namespace pytracer;

namespace {

constexpr uint64_t kStackBytes = 1 << 20;  // room for some 2 * 8,000 stacks
constexpr uint32_t kEntries = 5'000;

SessionOptions options() { return {{PYTRACER_CPU_DEVICE}, kEntries, 32, kStackBytes, Context::all}; }

int empty_file() { return memfd_create("box", MFD_CLOEXEC); }

// Each thread allocates in an address range of its own, from stacks that are new again and again, so that
// generations are renewed, and keeps some blocks. The size of a block is its stack's innermost offset.
void work(uint64_t thread, int32_t count) {
  const uint64_t base = (thread + 1) << 32;
  for (int32_t i = 1; i <= count; ++i) {
    run_frames({frame_at(1 + thread, i), frame_at(100 + static_cast<uintptr_t>(i % 50), i / 50)});
    alloc(base + static_cast<uint64_t>(i) * 64, static_cast<uint64_t>(i));
    if (i % 16 != 0) release(base + static_cast<uint64_t>(i) * 64);
  }
}

}  // namespace

TEST(a_box_has_what_threads_record) {
  // GIVEN a session whose tables lie in a box
  Recorder::instance().set_walking(true);
  const int file = empty_file();
  Registry::instance().open_box(dup(file));
  Session session(options());
  session.start();
  // WHEN threads record more than the ring and the stack table hold
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) threads.emplace_back(work, t, 16'000);
  for (std::thread& thread : threads) thread.join();
  CHECK(session.stats().stacks.generations > 2);
  // THEN the reader finds the same live blocks, and the same events but for the oldest one
  const View view = session.view();
  const BoxReader box(file);
  CHECK(!box.is_cut());
  const std::vector<DeviceNow> now = devices_now(box);
  uint64_t live_bytes = 0;
  for (const LiveBlock& block : view.devices[0].capture.blocks) live_bytes += block.size;
  CHECK(now.size() == 1 && now[0].allocated_bytes == live_bytes && now[0].recorded == view.devices[0].capture.end);
  const std::vector<Event> events = copy_events(view.devices[0]);
  const BoxReader::Array* const ring = box.newest(BoxKind::ring, PYTRACER_CPU_DEVICE);
  CHECK(ring->number == kEntries && ring->count == view.devices[0].capture.end);
  const std::vector<Event> held = box.items<Event>(ring, 0, kEntries);
  const auto stacks = restored_stacks(box, 0, 0);
  for (size_t i = 0; i < events.size(); ++i) {
    const Event& event = held[(ring->count - events.size() + i) % kEntries];
    CHECK(event.address == events[i].address && event.packed_size == events[i].packed_size &&
          event.stack == events[i].stack && event.ticks == events[i].ticks);
    // AND their stacks, by name
    if (event.stack == 0) continue;  // dropped, while a generation took over
    CHECK(stacks->generation_of(event.stack) != nullptr);
    CHECK(name_of(*stacks, event.stack) == name_of(*view.stacks, event.stack));
    CHECK(frame_of(*stacks, event.stack, 0).offset == frame_of(*view.stacks, event.stack, 0).offset);
  }
  close(file);
}

TEST(a_box_without_space_goes_on_in_memory) {
  // GIVEN a box whose descriptor is closed behind its back, and is another file's then
  Recorder::instance().set_walking(true);
  const int file = empty_file(), taken = dup(file), other = empty_file();
  Registry::instance().open_box(taken);
  Session session(options());
  session.start();
  work(0, 10);
  CHECK(dup2(other, taken) == taken);
  // WHEN more is recorded than the file has space for
  work(0, 8'000);
  // THEN nothing is missing, the box says that it is cut, and the other file is as it was
  CHECK(copy_events(session.view().devices[0]).size() == kEntries);
  CHECK(session.stats().stacks.dropped == 0);
  CHECK(BoxReader(file).is_cut());
  struct stat about {};
  CHECK(fstat(other, &about) == 0 && about.st_size == 0 && about.st_blocks == 0);
  close(taken);
  close(other);
  close(file);
}

TEST(a_second_session_has_no_box_and_a_later_one_may) {
  const int file = empty_file();
  Registry::instance().open_box(dup(file));
  {
    Session session(options());
    session.start();
    bool is_refused = false;
    try {
      Registry::instance().open_box(file);
    } catch (const Error&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
  Registry::instance().open_box(empty_file());  // the last session is gone, and so is its box
  Session session(options());
  session.start();
  session.stop();
  close(file);
}
