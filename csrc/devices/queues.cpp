#include "queues.h"

#include <mutex>
#include <vector>

#include "control.h"

namespace simulated {
namespace {

std::atomic<bool> busy{settings().busy != 0};
std::atomic<int> pending_queries{static_cast<int>(settings().pending_queries)};
std::atomic<uint64_t> records{0};
std::atomic<uint64_t> captures{0};
// The count of Stream::finished for all streams of a device.
std::atomic<uint64_t> finished_on[kMaxDevices];

// All streams except the default ones, for captures that span several streams.
struct Streams {
  std::mutex mutex;
  std::vector<Stream*> all;
};

Streams& streams() {
  static auto* only = new Streams;
  return *only;
}

bool was_waited_for(const Event& event) {
  return event.number <= event.stream->finished.load(std::memory_order_acquire) ||
         event.number <= finished_on[event.stream->device].load(std::memory_order_acquire);
}

}  // namespace

Stream* create_stream(int device, int priority) {
  std::lock_guard<std::mutex> lock(streams().mutex);
  const int id = static_cast<int>(streams().all.size()) + 1;
  auto* created = new Stream{device, id, priority};
  streams().all.push_back(created);
  return created;
}

Stream* default_stream(int device) {
  static auto* defaults = [] {
    auto* made = new std::vector<Stream*>;
    for (int each = 0; each < kMaxDevices; ++each) made->push_back(new Stream{each, 0, 0});
    return made;
  }();
  return (*defaults)[device];
}

void record(Event* event, Stream* stream) {
  event->stream = stream;
  event->number = records.fetch_add(1, std::memory_order_relaxed) + 1;
  event->capture = stream->capture.load(std::memory_order_relaxed);
  event->pending_queries.store(pending_queries.load(std::memory_order_relaxed),
                               std::memory_order_relaxed);
  event->time = std::chrono::steady_clock::now();
}

bool is_pending(Event* event) {
  if (event->stream == nullptr || was_waited_for(*event)) return false;
  if (is_busy()) return true;
  return event->pending_queries.load(std::memory_order_relaxed) > 0 &&
         event->pending_queries.fetch_sub(1, std::memory_order_relaxed) > 0;
}

void synchronize(Event* event) {
  // Streams are in order: when an event has happened, so has all earlier work on its stream.
  if (event->stream == nullptr) return;
  auto& finished = event->stream->finished;
  uint64_t before = finished.load(std::memory_order_relaxed);
  while (before < event->number &&
         !finished.compare_exchange_weak(before, event->number, std::memory_order_release)) {
  }
}

void synchronize(Stream* stream) {
  stream->finished.store(records.load(std::memory_order_relaxed), std::memory_order_release);
}

void synchronize_device(int device) {
  finished_on[device].store(records.load(std::memory_order_relaxed), std::memory_order_release);
}

float milliseconds_between(const Event& start, const Event& end) {
  return std::chrono::duration<float, std::milli>(end.time - start.time).count();
}

void set_busy(bool on) { busy.store(on, std::memory_order_release); }

void set_pending_queries(int queries) {
  pending_queries.store(queries, std::memory_order_relaxed);
}

bool is_busy() { return busy.load(std::memory_order_acquire); }

uint64_t begin_capture(Stream* stream) {
  const uint64_t number = captures.fetch_add(1, std::memory_order_relaxed) + 1;
  stream->capture.store(number, std::memory_order_release);
  return number;
}

uint64_t end_capture(Stream* stream) {
  const uint64_t number = stream->capture.exchange(0, std::memory_order_acq_rel);
  if (number == 0) return 0;
  std::lock_guard<std::mutex> lock(streams().mutex);
  for (Stream* other : streams().all) {
    uint64_t expected = number;
    other->capture.compare_exchange_strong(expected, 0, std::memory_order_acq_rel);
  }
  return number;
}

void wait_for(Stream* stream, const Event& event) {
  // An event of an ended capture has no effect.
  if (event.capture != 0 && event.stream->capture.load(std::memory_order_acquire) == event.capture) {
    stream->capture.store(event.capture, std::memory_order_release);
  }
}

void lock_queues() { streams().mutex.lock(); }
void unlock_queues() { streams().mutex.unlock(); }

}  // namespace simulated
