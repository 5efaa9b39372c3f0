// What the core itself knows of autograd, where the library that reads its state (hooks/autograd.cpp)
// is missing: the threads that run the nodes of an accelerator have a name that torch gives them,
// "pt_autograd_0" and so on (torch/csrc/autograd/engine.cpp). That a node runs is then known, and not
// which. Without these names, memory that the backward pass frees could not be told from any other.
#pragma once

#include "hooks/autograd_abi.h"

namespace pytracer {

// Says on such a thread that a node of the type `backward` runs, which has no number.
extern const pytracer_autograd autograd_threads;

}  // namespace pytracer
