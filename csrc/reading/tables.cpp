#include "tables.h"

#include <algorithm>

namespace pytracer::reading {

namespace {

// The keys that are known, numbered as the strings they are interned as.
enum Key : uint32_t {
  kNoKey,  // ""
  kAction,
  kAddr,
  kDeviceFree,
  kSize,
  kStream,
  kTimeUs,
  kFrames,
  kPoolId,
  kCompileContext,
  kUserMetadata,
  kFilename,
  kName,
  kLine,
  kState,
  kRequestedSize,
  kHistory,
  kRealSize,
  kAddress,
  kBlocks,
  kTotalSize,
  kDevice,
  kSegmentType,
  kSegmentPoolId,
  kIsExpandable,
  kAllocatedSize,
  kActiveSize,
  kSegments,
  kDeviceTraces,
  kAllocatorSettings,
  kExternalAnnotations,
  kPytracer,
  kKeys
};
constexpr const char* kKeyNames[kKeys] = {
    "",         "action",         "addr",          "device_free",     "size",
    "stream",   "time_us",        "frames",        "pool_id",         "compile_context",
    "user_metadata", "filename",  "name",          "line",            "state",
    "requested_size", "history",  "real_size",     "address",         "blocks",
    "total_size", "device",       "segment_type",  "segment_pool_id", "is_expandable",
    "allocated_size", "active_size", "segments",   "device_traces",   "allocator_settings",
    "external_annotations", "pytracer"};
static_assert(kKeys <= 64, "row_of() has a bit for each");

constexpr uint64_t bit(Key key) { return uint64_t{1} << key; }
constexpr size_t kMostUnknownKeys = 64;
constexpr size_t kMostItems = 2 * 64;  // looked at in a dict that is no row, time and again
constexpr size_t kMostDevices = 256;   // torch counts them in 8 bits

uint32_t key_of(Value key) { return key.is(Kind::string) ? key.index() : kKeys; }

Value value_of(const std::vector<Value>& items, Key key) {
  for (size_t i = 0; i < items.size(); i += 2) {
    if (key_of(items[i]) == key) return items[i + 1];
  }
  return Value();
}

}  // namespace

Tables::Tables() {
  for (uint32_t key = 1; key < kKeys; ++key) strings.intern(kKeyNames[key]);
  for (const char* name : kActionNames) {
    action_of_string_.resize(strings.intern(name) + 1, kNoAction);
    action_of_string_.back() = static_cast<uint8_t>(actions.size());
    actions.emplace_back(name);
  }
  stacks.ends.push_back(0);
  pools.push_back(0);
  pools.push_back(0);
  pool_index_.find_or_add(mix(mix(0, 0), 0), 0, [](uint32_t) { return false; });
}

Value Tables::adopt(Value item) {
  if (!item.is(Kind::object) || heap.shape(item) != Shape::dict) return item;
  if (heap.is_resolved(item)) return heap.resolved(item);
  const std::vector<Value>& items = heap.items(item);
  Value row;
  switch (row_of(items)) {
    case Row::other: return item;
    case Row::event: row = event(items); break;
    case Row::frame: row = frame(items); break;
    case Row::block: row = block(items); break;
    case Row::segment: row = segment(items); break;
  }
  heap.resolve(item, row);
  heap.discard(item);
  return row;
}

// A dict that is no row may come again and again, and be long: its first keys decide.
Tables::Row Tables::row_of(const std::vector<Value>& items) const noexcept {
  uint64_t keys = 0;
  for (size_t i = 0; i < std::min(items.size(), kMostItems); i += 2) {
    const uint32_t key = key_of(items[i]);
    if (key < kKeys) keys |= uint64_t{1} << key;
  }
  const auto has = [&](uint64_t all) { return (keys & all) == all; };
  if (has(bit(kAction)) && (keys & (bit(kAddr) | bit(kDeviceFree)))) return Row::event;
  // What a user keeps in the metadata may have such keys too.
  if (has(bit(kFilename) | bit(kName) | bit(kLine))) {
    return value_of(items, kLine).is(Kind::integer) ? Row::frame : Row::other;
  }
  if (has(bit(kState) | bit(kSize))) {
    return state_of(value_of(items, kState)) != kNoState ? Row::block : Row::other;
  }
  if (has(bit(kAddress) | bit(kTotalSize) | bit(kBlocks))) return Row::segment;
  return Row::other;
}

Value Tables::event(const std::vector<Value>& items) {
  uint8_t action_value = kNoAction;
  int64_t address = 0, size = 0, stream = 0, time = kNoTime;
  uint32_t stack_id = 0, pool_id = 0, compile_context = 0, user_metadata = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_of(items[i])) {
      case kAction: action_value = action(value); break;
      case kAddr:
      case kDeviceFree: address = integer(value, "an event's address"); break;
      case kSize: size = integer(value, "an event's size"); break;
      case kStream: stream = integer(value, "an event's stream"); break;
      case kTimeUs: time = integer(value, "an event's time_us"); break;
      case kFrames: stack_id = stack(value); break;
      case kPoolId: pool_id = pool(value); break;
      case kCompileContext: compile_context = text(value, "an event's compile_context"); break;
      case kUserMetadata: user_metadata = text(value, "an event's user_metadata"); break;
      default: unknown("event", items[i]);
    }
  }
  events.action.push_back(action_value);
  events.address.push_back(address);
  events.size.push_back(size);
  events.stream.push_back(stream);
  events.time.push_back(time);
  events.stack.push_back(stack_id);
  events.pool.push_back(pool_id);
  events.compile_context.push_back(compile_context);
  events.user_metadata.push_back(user_metadata);
  return Value(Kind::event, events.action.size() - 1);
}

Value Tables::frame(const std::vector<Value>& items) {
  uint32_t filename = 0, name = 0;
  int64_t line = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_of(items[i])) {
      case kFilename: filename = text(value, "a frame's filename"); break;
      case kName: name = text(value, "a frame's name"); break;
      case kLine: line = integer(value, "a frame's line"); break;
      default: unknown("frame", items[i]);
    }
  }
  const uint32_t next = static_cast<uint32_t>(frames.line.size());
  const uint64_t hash = mix(mix(mix(0, filename), name), static_cast<uint64_t>(line));
  const uint32_t found = frame_index_.find_or_add(hash, next, [&](uint32_t each) {
    return frames.filename[each] == filename && frames.name[each] == name &&
           frames.line[each] == line;
  });
  if (found == next) {
    frames.filename.push_back(filename);
    frames.name.push_back(name);
    frames.line.push_back(line);
  }
  return Value(Kind::frame, found);
}

Value Tables::block(const std::vector<Value>& items) {
  int64_t address = -1, size = 0, requested = -1;
  uint8_t state_value = kInactive;
  uint32_t stack_id = 0;
  Value old;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_of(items[i])) {
      case kAddress: address = integer(value, "a block's address"); break;
      case kSize: size = integer(value, "a block's size"); break;
      case kRequestedSize: requested = integer(value, "a block's requested_size"); break;
      case kState: state_value = state_of(value); break;
      case kFrames: stack_id = stack(value); break;
      case kHistory: old = value; break;
      default: unknown("block", items[i]);
    }
  }
  history(old, requested, stack_id);
  blocks.segment.push_back(0);
  blocks.address.push_back(address);
  blocks.size.push_back(size);
  blocks.requested.push_back(requested >= 0 ? requested : size);
  blocks.state.push_back(state_value);
  blocks.stack.push_back(stack_id);
  return Value(Kind::block, blocks.size.size() - 1);
}

// Before torch 2.1 a block has, instead of frames and requested_size, the list of its allocations,
// the latest first.
void Tables::history(Value value, int64_t& requested, uint32_t& stack_id) {
  if (!is_list(value) || heap.items(value).empty()) return;
  const Value latest = heap.items(value).front();
  if (!latest.is(Kind::object) || heap.shape(latest) != Shape::dict) return;
  const std::vector<Value>& items = heap.items(latest);
  for (size_t i = 0; i < std::min(items.size(), kMostItems); i += 2) {
    const uint32_t key = key_of(items[i]);
    if (key == kRealSize && requested < 0) requested = integer(items[i + 1], "a real_size");
    if (key == kFrames && stack_id == 0 && is_list(items[i + 1])) {
      heap.share(items[i + 1]);  // the dict goes on naming it
      stack_id = stack(items[i + 1]);
    }
  }
}

Value Tables::segment(const std::vector<Value>& items) {
  int64_t device = 0, address = 0, size = 0, stream = 0;
  uint32_t kind = 0, pool_id = 0, stack_id = 0;
  bool is_expandable = false;
  Value block_list;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_of(items[i])) {
      case kDevice: device = integer(value, "a segment's device"); break;
      case kAddress: address = integer(value, "a segment's address"); break;
      case kTotalSize: size = integer(value, "a segment's total_size"); break;
      case kStream: stream = integer(value, "a segment's stream"); break;
      case kSegmentType: kind = text(value, "a segment's segment_type"); break;
      case kSegmentPoolId: pool_id = pool(value); break;
      case kIsExpandable: is_expandable = value.is(Kind::boolean) && value.number() != 0; break;
      case kFrames: stack_id = stack(value); break;
      case kBlocks: block_list = value; break;
      case kAllocatedSize:
      case kActiveSize:
      case kRequestedSize: break;  // follow from the blocks
      default: unknown("segment", items[i]);
    }
  }
  const size_t number = segments.size.size();
  Range own = rows(block_list, Kind::block, "a segment's blocks");
  if (own.begin == own.end) own = {claimed_blocks_, claimed_blocks_};
  if (own.begin != claimed_blocks_) wrong("the order of the segments' blocks");
  claimed_blocks_ = own.end;
  int64_t next = address;
  for (uint64_t i = own.begin; i < own.end; ++i) {
    blocks.segment[i] = static_cast<int64_t>(number);
    if (blocks.address[i] < 0) blocks.address[i] = next;
    if (__builtin_add_overflow(blocks.address[i], blocks.size[i], &next)) wrong("a block's size");
  }
  segments.device.push_back(device);
  segments.address.push_back(address);
  segments.size.push_back(size);
  segments.stream.push_back(stream);
  segments.first_block.push_back(static_cast<int64_t>(own.begin));
  segments.kind.push_back(kind);
  segments.pool.push_back(pool_id);
  segments.stack.push_back(stack_id);
  segments.is_expandable.push_back(is_expandable);
  return Value(Kind::segment, number);
}

void Tables::unknown(std::string_view row, Value key) {
  if (!key.is(Kind::string) || unknown_keys.size() == kMostUnknownKeys) return;
  unknown_keys.insert(std::string(row) + "." + std::string(strings.at(key.index())));
}

void Tables::finish(Value root) {
  constexpr auto kKind = ReadError::Kind::not_a_snapshot;
  Value segment_list, trace_list;
  if (is_list(root)) {
    segment_list = root;  // torch before 2.0: the segments alone
  } else if (root.is(Kind::object) && heap.shape(root) == Shape::dict) {
    const std::vector<Value>& items = heap.items(root);
    for (size_t i = 0; i < items.size(); i += 2) {
      switch (key_of(items[i])) {
        case kSegments: segment_list = items[i + 1]; break;
        case kDeviceTraces: trace_list = items[i + 1]; break;
        case kAllocatorSettings: allocator_settings = items[i + 1]; break;
        case kExternalAnnotations: external_annotations = items[i + 1]; break;
        case kPytracer: about = items[i + 1]; break;
        default:
          // torch 2.14 has lists of host memory, which are empty unless they were asked for.
          if (is_list(items[i + 1]) && heap.items(items[i + 1]).empty()) break;
          unknown("snapshot", items[i]);
      }
    }
    if (!is_list(segment_list) || !is_list(trace_list)) {
      throw ReadError(kKind, "a dict without the lists 'segments' and 'device_traces'");
    }
  } else {
    throw ReadError(kKind, "neither a dict nor a list");
  }
  for (const Value each : heap.items(segment_list)) {
    if (!each.is(Kind::segment)) throw ReadError(kKind, "what is in 'segments' are no segments");
  }
  device_segments = rows(segment_list, Kind::segment, "the list of segments");
  const auto first_block = [&](uint64_t number) {
    const bool is_last = number == segments.size.size();
    return is_last ? claimed_blocks_ : static_cast<uint64_t>(segments.first_block[number]);
  };
  device_blocks = {first_block(device_segments.begin), first_block(device_segments.end)};
  if (is_list(trace_list)) {
    if (heap.items(trace_list).size() > kMostDevices) damaged("more devices than there can be");
    for (const Value each : heap.items(trace_list)) {
      traces.push_back(rows(each, Kind::event, "the list of a device's events"));
    }
  }
}

}  // namespace pytracer::reading
