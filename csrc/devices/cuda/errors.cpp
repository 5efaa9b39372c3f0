// libcudart.so: the names of errors.
#include "types.h"

using namespace simulated::cuda;

namespace {

struct Text {
  const char* name;
  const char* meaning;
};

Text text_of(int error) {
  switch (error) {
    case kSuccess:
      return {"cudaSuccess", "no error"};
    case kInvalidValue:
      return {"cudaErrorInvalidValue", "invalid argument"};
    case kOutOfMemory:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case kNotInitialized:
      return {"cudaErrorInitializationError", "initialization error"};
    case kInvalidDevice:
      return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case kNotReady:
      return {"cudaErrorNotReady", "device not ready"};
    case kNotSupported:
      return {"cudaErrorNotSupported", "operation not supported"};
    default:
      return {"cudaErrorSimulated", "error of the simulated runtime"};
  }
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(int error) { return text_of(error).name; }
const char* cudaGetErrorString(int error) { return text_of(error).meaning; }

}  // extern "C"
