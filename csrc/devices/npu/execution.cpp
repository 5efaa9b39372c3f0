// libascendcl.so, part 2: streams, events, captured graphs.
#include <acl/acl_mdl.h>

#include "devices/queues.h"
#include "npu.h"

using namespace simulated;
using namespace simulated::npu;

namespace {

Stream* stream_of(aclrtStream handle) {
  return handle == nullptr ? default_stream(current_device()) : static_cast<Stream*>(handle);
}

Event* event_of(aclrtEvent handle) { return static_cast<Event*>(handle); }

// A captured graph ("model") is identified by the number of its capture.
aclmdlRI model_of(uint64_t capture) { return reinterpret_cast<aclmdlRI>(capture); }

}  // namespace

extern "C" {

// Streams.

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t) {
  *stream = create_stream(current_device(), static_cast<int>(priority));
  return ACL_SUCCESS;
}

aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

aclError aclrtDestroyStream(aclrtStream) { return ACL_SUCCESS; }
aclError aclrtDestroyStreamForce(aclrtStream) { return ACL_SUCCESS; }

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  *id = stream_of(stream)->id;
  return ACL_SUCCESS;
}

aclError aclrtStreamQuery(aclrtStream, aclrtStreamStatus* status) {
  *status = is_busy() ? ACL_STREAM_STATUS_NOT_READY : ACL_STREAM_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  synchronize(stream_of(stream));
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) {
  return aclrtSynchronizeStream(stream);
}

aclError aclrtSynchronizeDevice() {
  synchronize_device(current_device());
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  if (event != nullptr) wait_for(stream_of(stream), *event_of(event));
  return ACL_SUCCESS;
}

// Functions for the host run immediately.
aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType,
                             aclrtStream) {
  function(argument);
  return ACL_SUCCESS;
}

aclError aclrtProcessReport(int32_t) { return ACL_ERROR_RT_REPORT_TIMEOUT; }

// Events.

aclError aclrtCreateEvent(aclrtEvent* event) {
  *event = new Event;
  return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }

aclError aclrtDestroyEvent(aclrtEvent event) {
  delete event_of(event);
  return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  if (event != nullptr) record(event_of(event), stream_of(stream));
  return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  if (event != nullptr) synchronize(event_of(event));
  return ACL_SUCCESS;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  *status = is_pending(event_of(event)) ? ACL_EVENT_RECORDED_STATUS_NOT_READY
                                        : ACL_EVENT_RECORDED_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  *status = is_pending(event_of(event)) ? ACL_EVENT_STATUS_NOT_READY : ACL_EVENT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent, aclrtEventWaitStatus* status) {
  *status = ACL_EVENT_WAIT_STATUS_COMPLETE;
  return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  *milliseconds = milliseconds_between(*event_of(start), *event_of(end));
  return ACL_SUCCESS;
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  using std::chrono::duration_cast;
  const auto since = event_of(event)->time.time_since_epoch();
  *microseconds = duration_cast<std::chrono::microseconds>(since).count();
  return ACL_SUCCESS;
}

// Captured graphs.

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode) {
  begin_capture(stream_of(stream));
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI* model) {
  const uint64_t capture = end_capture(stream_of(stream));
  if (model != nullptr) *model = model_of(capture);
  return capture != 0 ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

aclError aclmdlRICaptureGetInfo(aclrtStream stream, aclmdlRICaptureStatus* status,
                                aclmdlRI* model) {
  const uint64_t capture = stream_of(stream)->capture.load();
  if (status != nullptr) {
    *status =
        capture != 0 ? ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  }
  if (model != nullptr) *model = model_of(capture);
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode*) { return ACL_SUCCESS; }

// No header of torch_npu 2.13.0 declares this function.
aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  *id = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(model));
  return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI, aclrtStream) {
  count(Counter::launch);
  return ACL_SUCCESS;
}

aclError aclmdlRIDestroy(aclmdlRI) { return ACL_SUCCESS; }

}  // extern "C"
