#include <algorithm>

#include "row_builder.h"
#include "snapshot_keys.h"

namespace pytracer::reading {

namespace {

[[noreturn]] void not_a_snapshot(const char* what) {
  throw ReadError(ReadError::Kind::not_a_snapshot, what);
}

// The lists of a snapshot's outermost value.
struct Outline {
  Value segments, traces, host_segments, host_trace;
};

Outline outline(Value root, Tables& tables, RowBuilder& rows, Watch& watch) {
  const Heap& heap = tables.heap;
  const RowValues values(tables, watch);
  if (values.is_list(root)) return {root, {}, {}, {}};  // before torch 2.0: the segments alone
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
      case kHostSegments: result.host_segments = value; break;
      case kHostTraces: result.host_trace = value; break;
      default: rows.note_unknown("snapshot", items[i]);
    }
  }
  if (!values.is_list(result.segments) || !values.is_list(result.traces)) {
    not_a_snapshot("a dict without the lists 'segments' and 'device_traces'");
  }
  return result;
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

// Pinned host memory becomes one more device, after the others. torch writes its lists since 2.14,
// and they are empty unless they were asked for.
void read_host(const Outline& lists, Tables& tables, Watch& watch) {
  const RowValues values(tables, watch);
  const auto rows = [&](Value list, Kind kind, const char* what) {
    return list.is(Kind::none) ? RowRange{0, 0} : values.rows(list, kind, what);
  };
  const RowRange trace = rows(lists.host_trace, Kind::event, "the list of host_traces");
  const RowRange segments = rows(lists.host_segments, Kind::segment, "the list of host_segments");
  const bool has_segments = segments.begin != segments.end;
  if (trace.begin == trace.end && !has_segments) return;
  if (tables.traces.size() >= static_cast<size_t>(kMostDevices)) damaged(kTooManyDevices);
  for (const RowRange& other : tables.traces) {
    if (trace.begin < other.end && other.begin < trace.end) {
      damaged("events of host_traces are a device's too");
    }
  }
  tables.host_device = static_cast<int64_t>(tables.traces.size());
  tables.traces.push_back(trace);
  if (!has_segments) return;
  for (uint64_t i = segments.begin; i < segments.end; ++i) {
    watch.tick();
    tables.segments.device[i] = tables.host_device;
  }
  RowRange& all = tables.device_segments;
  if (all.begin == all.end) {
    all = segments;
  } else if (all.end == segments.begin) {
    all.end = segments.end;
  } else if (segments.end == all.begin) {
    all.begin = segments.begin;
  } else {
    damaged("host_segments are between other segments");
  }
}

}  // namespace

void read_snapshot(ByteReader& in, Tables& tables, Watch& watch) {
  RowBuilder rows(tables, watch);
  const Value root = read_pickle(in, tables, rows, watch);
  const Outline lists = outline(root, tables, rows, watch);
  for (const Value item : tables.heap.items(lists.segments)) {
    watch.tick();
    if (!item.is(Kind::segment)) not_a_snapshot("the items of 'segments' are no segments");
  }
  tables.device_segments = RowValues(tables, watch).rows(lists.segments, Kind::segment, "the list of segments");
  if (!lists.traces.is(Kind::none)) read_traces(lists.traces, tables, watch);
  read_host(lists, tables, watch);
  const auto first_block = [&](uint64_t segment) {  // the blocks are in the order of the segments
    const bool is_end = segment == tables.segments.size.size();
    return is_end ? rows.claimed_blocks() : static_cast<uint64_t>(tables.segments.first_block[segment]);
  };
  tables.device_blocks = {first_block(tables.device_segments.begin), first_block(tables.device_segments.end)};
}

}  // namespace pytracer::reading
