// libcudnn.so.9, as far as a caller looks at what it returns: enough for convolutions and batch
// normalization; make_libraries.py adds stubs for the rest. Recurrent networks and attention by
// cuDNN fail.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "../control.h"
#include "types.h"

using namespace simulated::cuda;

namespace {

// Newer than any that torch was compiled with: it insists on that.
constexpr int kMajor = 9;
constexpr int kMinor = 99;
constexpr int kPatch = 0;

// cudnnBackendAttributeType_t: those that are answered.
constexpr int kInteger = 3;
constexpr int kDescriptor = 15;

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return kMajor * 10000 + kMinor * 100 + kPatch; }
size_t cudnnGetCudartVersion() { return kCudaVersion; }
const char* cudnnGetErrorString(int) { return "error of the simulated cuDNN"; }

int cudnnGetProperty(int which, int* value) {
  constexpr int kProperties[] = {kMajor, kMinor, kPatch};
  *value = kProperties[which];
  return kSuccess;
}

// Convolutions: descriptors are filled, one of them is asked for plans, a plan for its workspace.

int cudnnBackendCreateDescriptor(int, void** descriptor) {
  *descriptor = std::calloc(1, 64);
  return kSuccess;
}

int cudnnBackendDestroyDescriptor(void* descriptor) {
  std::free(descriptor);
  return kSuccess;
}

// There is one of each descriptor (one plan), every number is 0 (no workspace), and of other things
// (notes on the plan) there are none.
int cudnnBackendGetAttribute(void*, int, int type, int64_t space, int64_t* count, void* values) {
  const bool answered = type == kInteger || type == kDescriptor;
  if (count != nullptr) *count = answered ? 1 : 0;
  if (type == kInteger && space > 0 && values != nullptr) *static_cast<int64_t*>(values) = 0;
  return kSuccess;
}

int cudnnBackendExecute(void*, void*, void*) {
  simulated::count(simulated::Counter::launch);
  return kSuccess;
}

// Batch normalization: no workspace.

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void*, int, int, void*, void*, void*,
                                                             void*, void*, size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void*, int, int, void*, void*, void*, void*,
                                                      void*, void*, void*, size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void*, int, int, void*, void*,
                                                         size_t* bytes) {
  *bytes = 0;
  return kSuccess;
}

}  // extern "C"
