// libcudnn.so.9: the functions whose results are used, sufficient for convolutions and batch
// normalization; recurrent networks are in rnn.cpp. cuDNN's attention fails.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "devices.h"

using namespace simulated::cuda;

namespace {

// torch requires a version that is at least the one it was compiled with.
constexpr int kMajor = 9;
constexpr int kMinor = 99;
constexpr int kPatch = 0;

// cudnnBackendAttributeType_t: the attributes with an answer.
constexpr int kInteger = 3;
constexpr int kDescriptor = 15;
constexpr int kPlanWorkspace = 402;  // CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE

int no_workspace(size_t* bytes) {
  simulated::count(simulated::Counter::unknown_workspaces);
  *bytes = 0;
  return kSuccess;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() { return kMajor * 10000 + kMinor * 100 + kPatch; }
size_t cudnnGetCudartVersion() { return cuda_version(); }
const char* cudnnGetErrorString(int) { return "error of the simulated cuDNN"; }

int cudnnGetProperty(int which, int* value) {
  constexpr int kProperties[] = {kMajor, kMinor, kPatch};
  *value = kProperties[which];
  return kSuccess;
}

// Convolutions: torch fills descriptors, queries one of them for plans, and a plan for its
// workspace.

int cudnnBackendCreateDescriptor(int, void** descriptor) {
  *descriptor = std::calloc(1, 64);
  return kSuccess;
}

int cudnnBackendDestroyDescriptor(void* descriptor) {
  std::free(descriptor);
  return kSuccess;
}

// There is one descriptor of each kind (one plan), every number is 0 (no workspace), and there are
// no other objects (notes on the plan).
int cudnnBackendGetAttribute(void*, int name, int type, int64_t space, int64_t* count,
                             void* values) {
  if (name == kPlanWorkspace) simulated::count(simulated::Counter::unknown_workspaces);
  const bool answered = type == kInteger || type == kDescriptor;
  if (count != nullptr) *count = answered ? 1 : 0;
  if (type == kInteger && space > 0 && values != nullptr) *static_cast<int64_t*>(values) = 0;
  return kSuccess;
}

int cudnnBackendExecute(void*, void*, void*) {
  simulated::count(simulated::Counter::launch);
  return kSuccess;
}

// torch's other calls for convolutions, and its loss for sequences.

int cudnnGetConvolutionForwardWorkspaceSize(void*, void*, void*, void*, void*, int,
                                            size_t* bytes) {
  return no_workspace(bytes);
}

int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, void*, void*, void*, void*, int,
                                                 size_t* bytes) {
  return no_workspace(bytes);
}

int cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, void*, void*, void*, void*, int,
                                                   size_t* bytes) {
  return no_workspace(bytes);
}

int cudnnGetCTCLossWorkspaceSize(void*, void*, void*, void*, void*, void*, int, void*,
                                 size_t* bytes) {
  return no_workspace(bytes);
}

int cudnnGetCTCLossWorkspaceSize_v8(void*, int, void*, void*, void*, size_t* bytes) {
  return no_workspace(bytes);
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
