// Streams and events, as both backends have them. Work is done when it is asked for, so an event
// has happened once it is recorded; what can be simulated is that the device has not got there yet,
// by which the allocators above put off frees.
//
// 1. Any thread, at any time; one event belongs to one thread at a time.
// 2. A recorded event is pending while the device is busy, and else for as many queries as
//    set_pending_queries() said when it was recorded. Whoever synchronizes with it, its stream or its device has
//    waited: it is pending no more.
// 3. Streams are never destroyed: events refer to them, and torch keeps its own for ever.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace simulated {

struct Stream {
  int device;
  int id;  // 0 is the device's default stream
  int priority;
  // Events recorded here up to this number have been waited for.
  std::atomic<uint64_t> finished{0};
  // The graph capture in progress, or 0.
  std::atomic<uint64_t> capture{0};
};

struct Event {
  Stream* stream = nullptr;  // nullptr: not recorded yet
  uint64_t number = 0;       // counts all records of all events
  uint64_t capture = 0;      // recorded as part of this capture
  std::atomic<int> pending_queries{0};
  std::chrono::steady_clock::time_point time = std::chrono::steady_clock::now();
};

Stream* create_stream(int device, int priority);
Stream* default_stream(int device);

void record(Event* event, Stream* stream);
// One query.
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
// Ends it on all its streams; its number, or 0 when there is none.
uint64_t end_capture(Stream* stream);
void wait_for(Stream* stream, const Event& event);

// Around fork().
void lock_queues();
void unlock_queues();

}  // namespace simulated
