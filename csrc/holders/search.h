// Who keeps objects alive: a search from the objects to the roots, against the references.
//
// 1. All objects of the collector are asked for what they refer to (tp_traverse), in passes. Whatever
//    refers to a wanted object is wanted from then on. A pass costs some 50 ns an object. It ends as soon as
//    all references to what is wanted were seen: variables of functions that run need none.
// 2. The GIL is held throughout. No code of the program runs, no reference is kept, and nothing is
//    compared by value.
// 3. The search ends when each target has a root, when nothing new is found, or by its bounds.
#pragma once

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "holders/roots.h"

namespace pytracer {

// The end of a text of objects that only each other hold.
constexpr const char* kGarbage = ", which gc.collect() would free";

// The processor time of the calling thread since the clock was made: on a busy machine, a search gets as
// far as on an idle one. A thread that hardly runs, as in a container with a quota or while memory is
// swapped, counts a fifth of the time that passes, because it has the GIL meanwhile.
class ThreadClock {
 public:
  double seconds() const noexcept {
    return std::max(now(CLOCK_THREAD_CPUTIME_ID) - begin_, (now(CLOCK_MONOTONIC) - wall_begin_) / kWallPart);
  }

 private:
  static constexpr double kWallPart = 5;

  static double now(clockid_t clock) noexcept {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double begin_ = now(CLOCK_THREAD_CPUTIME_ID);
  double wall_begin_ = now(CLOCK_MONOTONIC);
};

struct SearchBounds {
  double seconds;           // of a ThreadClock
  int depth = 8;            // how many holders a path has at most
  size_t holders = 50'000;  // how many are wanted at most, and two for each target
  bool wants_opaque = false;  // one pass goes to the end in any case, for `opaque` below
};

struct FoundHolders {
  // Of each target: "losses[41] of main()"; "a temporary value": code that runs; "no Python tensor": only
  // C++; "": nobody was found.
  std::vector<std::string> texts;
  bool is_whole;  // the search was not cut off by its time
  // Objects whose values only C++ sees, and who holds them: "exported[3] (inside a PyCapsule) of main()".
  std::vector<std::pair<PyObject*, std::string>> opaque{};
};

// The name of a capsule of DLPack that nobody has taken the tensor of.
constexpr const char* kTensorCapsule = "dltensor";

// Returns who holds each target; nobody if !frames_are_known(). Throws std::bad_alloc.
//
// `objects`: all of the collector, borrowed. `frames`, `exceptions` and `folders`: as for Roots. The collector must not
// run meanwhile.
FoundHolders find_holders(const std::vector<PyObject*>& targets, const std::vector<PyObject*>& objects,
                          PyObject* frames, PyObject* exceptions, const Folders& folders, const SearchBounds& bounds);

}  // namespace pytracer
