// The streams and events of both backends. Work is done immediately, so that an event has happened
// when it is recorded. The model can simulate that the device has not reached the event yet, for
// which the allocators delay frees.
//
// 1. Any thread may call any function at any time; one event belongs to one thread at a time.
// 2. A recorded event is pending while the device is busy, and otherwise for as many queries as
//    set_pending_queries() said when the event was recorded. Synchronizing with the event, its
//    stream or its device is a wait, after which the event is no longer pending.
// 3. Streams are never destroyed: events refer to them, and torch keeps its own streams for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace simulated {

struct Stream {
  int device;
  int id;  // 0 for the device's default stream
  int priority;
  // Events recorded here up to this number have been waited for.
  std::atomic<uint64_t> finished{0};
  // The current graph capture, or 0.
  std::atomic<uint64_t> capture{0};
};

struct Event {
  Stream* stream = nullptr;  // nullptr if not recorded yet
  uint64_t number = 0;       // the number of this record among the records of all events
  uint64_t capture = 0;      // the capture in which it was recorded, or 0
  std::atomic<int> pending_queries{0};
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};

Stream* create_stream(int device, int priority);
Stream* default_stream(int device);

void record(Event* event, Stream* stream);
// Answers one query.
bool is_pending(Event* event);
void synchronize(Event* event);
void synchronize(Stream* stream);
void synchronize_device(int device);
float milliseconds_between(const Event& start, const Event& end);

void set_busy(bool busy);
bool is_busy();
void set_pending_queries(int queries);

// Graph capture. A stream that waits for an event recorded in a capture takes part in it.
uint64_t begin_capture(Stream* stream);
// Ends the capture on all its streams; returns its number, or 0 if there is none.
uint64_t end_capture(Stream* stream);
void wait_for(Stream* stream, const Event& event);

// Called before and after fork().
void lock_queues();
void unlock_queues();

}  // namespace simulated
