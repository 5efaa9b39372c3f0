#include "snapshot_reader.h"

#include <algorithm>

#include "pickle_machine.h"
#include "row_builder.h"
#include "snapshot_keys.h"

namespace pytracer::reading {

namespace {

[[noreturn]] void not_a_snapshot(const char* what) {
  throw ReadError(ReadError::Kind::not_a_snapshot, what);
}

// The lists of a snapshot's outermost value.
struct Outline {
  Value segments, traces;
};

Outline outline(Value root, Tables& tables, RowBuilder& rows, Watch& watch) {
  const Heap& heap = tables.heap;
  const RowValues values(tables, watch);
  if (values.is_list(root)) return {root, Value()};  // before torch 2.0: the segments alone
  if (!root.is(Kind::object) || heap.shape(root) != Shape::dict) {
    not_a_snapshot("neither a dict nor a list");
  }
  Outline result;
  const Heap::Items& items = heap.items(root);
  for (size_t i = 0; i < items.size(); i += 2) {
    watch.tick();
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kSegments: result.segments = value; break;
      case kDeviceTraces: result.traces = value; break;
      case kAllocatorSettings: tables.allocator_settings = value; break;
      case kExternalAnnotations: tables.external_annotations = value; break;
      case kPytracer: tables.metadata = value; break;
      default:
        // torch 2.14 writes lists of host memory, which are empty unless they were asked for.
        if (values.is_list(value) && heap.items(value).empty()) break;
        rows.note_unknown("snapshot", items[i]);
    }
  }
  if (!values.is_list(result.segments) || !values.is_list(result.traces)) {
    not_a_snapshot("a dict without the lists 'segments' and 'device_traces'");
  }
  return result;
}

void read_segments(Value list, Tables& tables, uint64_t claimed_blocks, Watch& watch) {
  for (const Value item : tables.heap.items(list)) {
    watch.tick();
    if (!item.is(Kind::segment)) not_a_snapshot("the items of 'segments' are no segments");
  }
  const RowValues values(tables, watch);
  const RowRange segments = values.rows(list, Kind::segment, "the list of segments");
  const auto first_block = [&](uint64_t segment) {
    const bool is_end = segment == tables.segments.size.size();
    return is_end ? claimed_blocks
                  : static_cast<uint64_t>(tables.segments.first_block[segment]);
  };
  tables.device_segments = segments;
  tables.device_blocks = {first_block(segments.begin), first_block(segments.end)};
}

void read_traces(Value list, Tables& tables, Watch& watch) {
  const RowValues values(tables, watch);
  const Heap::Items& items = tables.heap.items(list);
  if (items.size() > static_cast<size_t>(kMostDevices)) damaged(kTooManyDevices);
  uint64_t next = 0;
  for (const Value item : items) {
    const RowRange trace = values.rows(item, Kind::event, "the list of a device's events");
    if (trace.begin < next && trace.begin < trace.end) {
      damaged("events of a device are another device's too, or in another order");
    }
    next = std::max(next, trace.end);
    tables.traces.push_back(trace);
  }
}

}  // namespace

void read_snapshot(ByteReader& in, Tables& tables, Watch& watch) {
  RowBuilder rows(tables, watch);
  const Value root = PickleMachine(in, tables.heap, tables.strings, rows, watch).run();
  const Outline lists = outline(root, tables, rows, watch);
  read_segments(lists.segments, tables, rows.claimed_blocks(), watch);
  if (!lists.traces.is(Kind::none)) read_traces(lists.traces, tables, watch);
}

}  // namespace pytracer::reading
