// Who keeps objects alive: a search from the objects to the roots, against the references.
//
// 1. All objects of the collector are asked for what they refer to (tp_traverse), in passes. Whatever
//    refers to a wanted object is wanted from then on. A pass costs some 50 ns an object. It ends as soon as
//    all references to what is wanted were seen: variables of functions that run need none.
// 2. The GIL is held throughout. No code of the program runs, no reference is kept, and nothing is
//    compared by value.
// 3. The search ends when each target has a root, when nothing new is found, or by its bounds.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "holders/roots.h"

namespace pytracer {

// The end of a text of objects that only each other hold.
constexpr const char* kGarbage = ", which gc.collect() would free";

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
