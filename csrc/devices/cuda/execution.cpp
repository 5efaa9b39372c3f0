// libcudart.so, part 2: streams, events, graphs, kernels. Names and signatures are NVIDIA's. A
// kernel does nothing, so that its results are whatever copies read.
#include "devices/queues.h"
#include "runtime.h"

using namespace simulated;
using namespace simulated::cuda;

namespace {

// cudaStreamLegacy and cudaStreamPerThread are small numbers, the default stream is null.
Stream* stream_of(void* handle) {
  constexpr uintptr_t kLastSpecial = 2;
  if (reinterpret_cast<uintptr_t>(handle) <= kLastSpecial) return default_stream(current_device());
  return static_cast<Stream*>(handle);
}

Event* event_of(void* handle) { return static_cast<Event*>(handle); }

// A graph is identified by the number of its capture, whether it is instantiated or not.
void* graph_handle(uint64_t capture) { return reinterpret_cast<void*>(capture); }

enum CaptureStatus { kNone = 0, kActive = 1 };

// The state between a <<<…>>> expression and the call of the kernel's stub.
struct LaunchConfiguration {
  Dim3 grid, block;
  size_t shared_bytes;
  void* stream;
};
constexpr int kMaxNestedLaunches = 16;
thread_local LaunchConfiguration configurations[kMaxNestedLaunches];
thread_local int configured = 0;

int launch() {
  count(Counter::launch);
  return kSuccess;
}

void* the_module;
char the_object;

}  // namespace

extern "C" {

// Streams.

int cudaStreamCreateWithPriority(void** stream, unsigned, int priority) {
  if (in_forked_child()) return fail(kNotInitialized);
  *stream = create_stream(current_device(), priority);
  return kSuccess;
}

int cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

int cudaStreamDestroy(void*) { return kSuccess; }

int cudaStreamGetPriority(void* stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return kSuccess;
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}

int cudaStreamQuery(void*) { return is_busy() ? fail(kNotReady) : kSuccess; }

int cudaStreamSynchronize(void* stream) {
  synchronize(stream_of(stream));
  return kSuccess;
}

int cudaDeviceSynchronize() {
  synchronize_device(current_device());
  return kSuccess;
}

int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  wait_for(stream_of(stream), *event_of(event));
  return kSuccess;
}

int cudaLaunchHostFunc(void*, void (*function)(void*), void* argument) {
  function(argument);
  return kSuccess;
}

int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* argument,
                          unsigned) {
  function(stream, kSuccess, argument);
  return kSuccess;
}

// Events.

int cudaEventCreateWithFlags(void** event, unsigned) {
  if (in_forked_child()) return fail(kNotInitialized);
  *event = new Event;
  return kSuccess;
}

int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(void* event) {
  delete event_of(event);
  return kSuccess;
}

int cudaEventRecord(void* event, void* stream) {
  record(event_of(event), stream_of(stream));
  return kSuccess;
}

int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cudaEventRecord(event, stream);
}

int cudaEventQuery(void* event) {
  return is_pending(event_of(event)) ? fail(kNotReady) : kSuccess;
}

int cudaEventSynchronize(void* event) {
  synchronize(event_of(event));
  return kSuccess;
}

int cudaEventElapsedTime(float* milliseconds, void* start, void* end) {
  *milliseconds = milliseconds_between(*event_of(start), *event_of(end));
  return kSuccess;
}

// Graphs.

int cudaStreamBeginCapture(void* stream, int) {
  begin_capture(stream_of(stream));
  return kSuccess;
}

int cudaStreamBeginCaptureToGraph(void* stream, void*, const void**, const void*, size_t, int) {
  begin_capture(stream_of(stream));
  return kSuccess;
}

int cudaStreamEndCapture(void* stream, void** graph) {
  const uint64_t capture = end_capture(stream_of(stream));
  if (capture == 0) return fail(kIllegalState);
  *graph = graph_handle(capture);
  return kSuccess;
}

int cudaStreamIsCapturing(void* stream, int* status) {
  *status = stream_of(stream)->capture.load() != 0 ? kActive : kNone;
  return kSuccess;
}

int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                const void*** dependencies, const void** edges, size_t* count) {
  const uint64_t capture = stream_of(stream)->capture.load();
  *status = capture != 0 ? kActive : kNone;
  if (id != nullptr) *id = capture;
  if (graph != nullptr) *graph = graph_handle(capture);
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return kSuccess;
}

int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                const void*** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, count);
}

int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph,
                             const void*** dependencies, const void** edges, size_t* count) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}

int cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return kSuccess;
}

int cudaGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

int cudaGraphLaunch(void*, void*) { return launch(); }

// One node without dependencies, because torch warns about a graph without nodes.
int cudaGraphGetNodes(void*, void** nodes, size_t* count) {
  if (nodes != nullptr && *count > 0) nodes[0] = &the_object;
  *count = 1;
  return kSuccess;
}

int cudaGraphNodeGetDependencies_v2(void*, void**, void*, size_t* count) {
  *count = 0;
  return kSuccess;
}

// In CUDA 12 the count is the third argument.
int cudaGraphNodeGetDependencies(void* node, void** nodes, size_t* third, size_t* fourth) {
  size_t* count = cuda_version() < kCuda13 ? third : fourth;
  return cudaGraphNodeGetDependencies_v2(node, nodes, nullptr, count);
}

int cudaGraphAddNode(void** node, void*, const void**, const void*, size_t, void*) {
  *node = &the_object;
  return kSuccess;
}

int cudaUserObjectCreate(void** object, void*, void (*)(void*), unsigned, unsigned) {
  *object = &the_object;
  return kSuccess;
}

// Kernels. The code that nvcc generates calls the first group.

void** __cudaRegisterFatBinary(void*) { return &the_module; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared_bytes, void* stream) {
  if (configured == kMaxNestedLaunches) return 1;
  configurations[configured++] = {grid, block, shared_bytes, stream};
  return 0;
}

int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared_bytes, void** stream) {
  if (configured == 0) return fail(kMissingConfiguration);
  const LaunchConfiguration& last = configurations[--configured];
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *stream = last.stream;
  return kSuccess;
}

int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return kSuccess;
}

int __cudaLaunchKernel(void*, Dim3, Dim3, void**, size_t, void*) { return launch(); }
int cudaLaunchKernel(const void*, Dim3, Dim3, void**, size_t, void*) { return launch(); }
int cudaLaunchKernelExC(const void*, const void*, void**) { return launch(); }
int cudaLaunchCooperativeKernel(const void*, Dim3, Dim3, void**, size_t, void*) {
  return launch();
}

int cudaFuncGetAttributes(FunctionAttributes* attributes, const void*) {
  *attributes = {};
  attributes->max_threads_per_block = kMaxThreadsPerBlock;
  attributes->registers = kRegistersPerThread;
  // The kernels' image that a driver would choose: CUB selects its own settings by this number.
  int image = static_cast<int>(settings().capability);
  for (const int built : {50, 60, 70, 75, 80, 86, 90, 100, 120}) {
    if (built / 10 == settings().capability / 10 && built <= settings().capability) image = built;
  }
  attributes->ptx_version = image;
  attributes->binary_version = image;
  attributes->max_dynamic_shared_bytes = attribute(97);
  return kSuccess;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                           unsigned) {
  *blocks = 2;
  return kSuccess;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads,
                                                  size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads,
                                                                shared_bytes, 0);
}

}  // extern "C"
