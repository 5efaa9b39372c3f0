// A test of what happens without memory.
#pragma once

#include <sys/resource.h>

#include "check.h"

// Bounds a resource of this process until it is lifted. Emulators of processors ignore bounds: then it
// does not hold.
class MemoryBound {
 public:
  MemoryBound(__rlimit_resource resource, rlim_t bytes) : resource_(resource) {
    CHECK(getrlimit(resource_, &before_) == 0);
    rlimit bound{bytes, before_.rlim_max};
    CHECK(setrlimit(resource_, &bound) == 0 && getrlimit(resource_, &bound) == 0);
    holds = bound.rlim_cur == bytes;
  }
  void lift() const { CHECK(setrlimit(resource_, &before_) == 0); }

  bool holds = false;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};
