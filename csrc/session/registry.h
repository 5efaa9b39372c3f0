// The sessions of the process, and what they need together: logs, stack table, clocks, captures.
//
// 1. One instance, made at the first use and never destroyed, as the recorder.
// 2. Control operations come one at a time, under control(). Nobody waits for that lock with the
//    GIL: its holder may wait for the allocator's lock, and the holder of that one for the GIL.
// 3. Logs and the stack table are made for the first session and destroyed with the last one, when
//    no hook uses them any more. A view that still needs them shares them.
// 4. No lock is held across a fork: functions that other libraries have registered for the fork may
//    call a session, or wait for a thread that does.
// 5. A forked child starts off and empty (after_fork_in_child()), and can be traced anew. The parent's
//    sessions are inert there: their process number is not the child's.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "record/clock.h"
#include "record/recorder.h"
#include "session/box_notes.h"
#include "view/view.h"

namespace pytracer {

class Session;
struct SessionOptions;

class Registry {
 public:
  static Registry& instance() noexcept;

  // Any thread.
  std::mutex& control() noexcept { return control_; }
  // Counts forks.
  uint64_t process_number() const noexcept {
    return process_number_.load(std::memory_order_relaxed);
  }

  // Any thread, not under control(). From now on an accelerator's captures begin at the snapshot
  // markers of this hook, which is attached; or those of pinned host memory.
  void set_hook(const pytracer_hook& hook, bool is_host = false);
  // The same, of the library that reads autograd's state.
  void set_autograd(const pytracer_autograd& autograd);

  // Any thread, not under control(). The workspaces that torch keeps for cuBLAS; none where the
  // attached hook cannot tell. `unread`: how many more there are, or 1 if another thread changes
  // them now. Throws std::bad_alloc.
  struct Workspaces {
    std::vector<pytracer_workspace> found;
    uint64_t unread;
  };
  Workspaces workspaces();

  // Any thread, not under control(). Records an out-of-memory that the accelerator's allocator did
  // not report, by the clock of its other events.
  void record_oom(int device, uint64_t requested_size, uint64_t free_size);

  // Any thread, not under control(). Has what is recorded lie in a box, from the first session on. Takes over
  // the descriptor of an empty file, also if it throws. Throws Error: there already is a session; IoError: the file system cannot.
  void open_box(int file);
  // As BoxNotes::describe(); does nothing without a box.
  void describe_box(std::string_view text);

  // Under control(), all below.
  // Notes that a step of a session begins, if the box is this session's.
  void note_step(const Session& session, uint32_t number, int64_t ticks,
                 const std::vector<uint64_t>& begins, const std::vector<uint32_t>& epochs,
                 bool replaces = false);
  struct Resources {
    std::vector<std::shared_ptr<DeviceLog>> logs;  // in the order of the session's devices
    std::shared_ptr<StackTable> stacks;
  };
  // Throws Error or std::bad_alloc; the session is not added then.
  Resources add(Session& session, const SessionOptions& options);
  void remove(Session& session) noexcept;
  // Makes each ring as large as the sessions that record its device ask for. Throws Error or
  // std::bad_alloc.
  void fit_rings();
  // The same where another size is not necessary: without memory for it, a ring stays as it is.
  void try_to_fit_rings() noexcept;
  // Gives each device the strongest wish of all sessions that record it.
  void apply_wishes();
  // Captures each log at an instant of its own, and the allocators' state at those instants.
  // Without memory for the live blocks: captures without them, and the exception.
  std::exception_ptr capture(const std::vector<DeviceLog*>& logs,
                             std::vector<DeviceLog::Capture>& captures, AllocatorState& state);
  // The clock of a device's events.
  WallClock& clock_of(int device) noexcept {
    const bool is_accelerator = device != PYTRACER_CPU_DEVICE && device != PYTRACER_HOST_DEVICE;
    return is_accelerator && accelerator_clock_ ? *accelerator_clock_ : clock_;
  }

 private:
  Registry();
  void resize_ring(DeviceLog& log, uint32_t max_entries);
  void note_clocks() noexcept;
  static void after_fork_in_child() noexcept;

  Recorder& recorder_ = Recorder::instance();
  std::mutex control_;  // guards all below
  std::vector<Session*> sessions_;
  std::vector<std::shared_ptr<DeviceLog>> logs_;
  std::shared_ptr<StackTable> stacks_;
  std::shared_ptr<Box> box_;
  std::unique_ptr<BoxNotes> notes_;  // null without a box, as the next
  std::unique_ptr<Keeper> keeper_;
  const pytracer_hook* accelerator_ = nullptr;
  const pytracer_hook* host_ = nullptr;
  WallClock clock_{&now_ticks};
  std::optional<WallClock> accelerator_clock_;  // where the hook stamps its events itself
  std::atomic<uint64_t> process_number_{0};
};

// Loads the shared libraries that are compiled for the running torch, and connects them to the
// recorder: the allocators' hooks, and the library that reads autograd's state.

// Attaches the hook in `path`, unless its backend is attached already. False: torch has not
// initialised the device yet. The hook calls `report_oom` if torch has no observers for that. The
// library is never unloaded. Any thread, without the GIL. Throws HookError with a message for the
// user.
bool attach_hook(const std::string& path, pytracer_oom_fn report_oom);

// Attaches the library in `path` that reads autograd's state, unless one is attached. The library is
// never unloaded. Any thread, without the GIL. Throws HookError, or Error (no address space).
void attach_autograd(const std::string& path);

// Lets the core tell the threads of autograd by their names (autograd_threads), unless a library
// that reads autograd's state is attached, or until one is. Throws Error or std::bad_alloc.
void watch_autograd_threads();

// What the attached library reads on the calling thread. Null: none is attached.
const pytracer_autograd* attached_autograd() noexcept;

// What the core itself knows of autograd, where the library that reads its state (hooks/autograd.cpp)
// is missing: the threads that run the nodes of an accelerator have a name that torch gives them,
// "pt_autograd_0" and so on (torch/csrc/autograd/engine.cpp). That a node runs is then known, and not
// which. Without these names, memory that the backward pass frees could not be told from any other.
//
// Says on such a thread that a node of the type `backward` runs, which has no number.
extern const pytracer_autograd autograd_threads;

}  // namespace pytracer
