#include "row_builder.h"

#include <algorithm>

#include "allocator_rules.h"
#include "snapshot_keys.h"

namespace pytracer::reading {

constexpr size_t kMostUnknownKeys = 64;
constexpr size_t kMostItems = 2 * 64;  // keys and values of a row; a longer dict is no row

constexpr uint64_t bit(Key key) { return uint64_t{1} << key; }
static_assert(kKeys <= 64, "row_kind() has a bit for each key");

RowBuilder::RowBuilder(Tables& tables, Watch& watch)
    : tables_(tables), watch_(watch), values_(tables, watch) {
  for (uint32_t key = 1; key < kKeys; ++key) tables_.strings.intern(kKeyNames[key]);
  for (const char* name : kActionNames) tables_.actions.intern(tables_.strings.intern(name));
}

Value RowBuilder::adopt(Value item) {
  Heap& heap = tables_.heap;
  if (!item.is(Kind::object) || heap.shape(item) != Shape::dict) return item;
  if (heap.is_resolved(item)) return heap.resolved(item);
  const Items& items = heap.items(item);
  Value row;
  switch (row_kind(items)) {
    case Row::none: return item;
    case Row::event: row = event(items); break;
    case Row::frame: row = frame(items); break;
    case Row::block: row = block(items); break;
    case Row::segment: row = segment(items); break;
  }
  heap.resolve(item, row);
  heap.discard(item);
  return row;
}

// The same long dict may be put into lists many times, so only short dicts are examined.
RowBuilder::Row RowBuilder::row_kind(const Items& items) const noexcept {
  if (items.size() > kMostItems) return Row::none;
  uint64_t keys = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const uint32_t key = key_number(items[i]);
    if (key < kKeys) keys |= uint64_t{1} << key;
  }
  const auto has = [&](uint64_t wanted) { return (keys & wanted) == wanted; };
  if (has(bit(kAction)) && (keys & (bit(kAddr) | bit(kDeviceFree)))) return Row::event;
  // A user's metadata may have the keys of frames and blocks too, so a value is checked as well.
  if (has(bit(kFilename) | bit(kName) | bit(kLine))) {
    return value_at(items, kLine).kind() < Kind::string ? Row::frame : Row::none;
  }
  if (has(bit(kState) | bit(kSize))) {
    return values_.block_state(value_at(items, kState)) != kNoState ? Row::block : Row::none;
  }
  if (has(bit(kAddress) | bit(kTotalSize) | bit(kBlocks))) return Row::segment;
  return Row::none;
}

Value RowBuilder::event(const Items& items) {
  EventColumns& events = tables_.events;
  events.add_row();
  events.action.back() = ActionRows::kNone;
  events.time.back() = kNoTime;
  uint32_t& stack = events.stack.back();
  Value missing;
  Backward backward;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kAction: events.action.back() = values_.action(value); break;
      case kAddr: events.address.back() = values_.integer(value, "an event's address", kAny); break;
      case kDeviceFree: events.address.back() = values_.integer(value, "an event's device_free", kBytes); break;
      case kSize: events.size.back() = values_.integer(value, "an event's size", kCount); break;
      case kStream: events.stream.back() = values_.integer(value, "an event's stream", kAny); break;
      case kTimeUs: events.time.back() = values_.integer(value, "an event's time_us", kTime); break;
      case kFrames: stack = values_.stack(value); break;
      case kPoolId: events.pool.back() = values_.pool(value); break;
      case kCompileContext: events.compile_context.back() = values_.text(value, "an event's compile_context"); break;
      case kUserMetadata: events.user_metadata.back() = values_.text(value, "an event's user_metadata"); break;
      case kAllocation: missing = value; break;
      default: read_backward("event", items[i], value, backward);
    }
  }
  stack = with_backward(stack, backward);
  if (!missing.is(Kind::none)) allocation(missing);
  return Value(Kind::event, events.action.size() - 1);
}

void RowBuilder::allocation(Value dict) {
  Heap& heap = tables_.heap;
  if (!dict.is(Kind::object) || heap.shape(dict) != Shape::dict) wrong_type("an event's allocation");
  const Items& items = heap.items(dict);
  if (items.size() > kMostItems) wrong_type("an event's allocation");
  AllocationColumns& allocations = tables_.allocations;
  allocations.add_row();
  allocations.event.back() = static_cast<int64_t>(tables_.events.action.size()) - 1;
  uint32_t& stack = allocations.stack.back();
  Backward backward;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kFrames: stack = values_.stack(value); break;
      case kBirthStep:
        allocations.birth_step.back() = values_.integer(value, "an allocation's birth_step", kCount);
        break;
      default: read_backward("allocation", items[i], value, backward);
    }
  }
  stack = with_backward(stack, backward);
  heap.resolve(dict, Value());
  heap.discard(dict);
}

Value RowBuilder::frame(const Items& items) {
  uint32_t filename = 0, name = 0;
  int64_t line = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kFilename: filename = values_.text(value, "a frame's filename"); break;
      case kName: name = values_.text(value, "a frame's name"); break;
      case kLine: line = values_.integer(value, "a frame's line", kLineNumber); break;
      default: note_unknown("frame", items[i]);
    }
  }
  return Value(Kind::frame, tables_.frames.intern(filename, name, line));
}

Value RowBuilder::block(const Items& items) {
  BlockColumns& blocks = tables_.blocks;
  blocks.add_row();
  int64_t& address = blocks.address.back();
  int64_t& size = blocks.size.back();
  int64_t& requested = blocks.requested.back();
  address = requested = -1;
  blocks.state.back() = kInactive;
  uint32_t& stack = blocks.stack.back();
  Value history;
  Backward backward;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kAddress: address = values_.integer(value, "a block's address", kBlockAddress); break;
      case kSize: size = values_.integer(value, "a block's size", kBytes); break;
      case kRequestedSize: requested = values_.integer(value, "a block's requested_size", kRequestedBytes); break;
      case kState: blocks.state.back() = values_.block_state(value); break;
      case kFrames: stack = values_.stack(value); break;
      case kHistory: history = value; break;
      case kCategory: blocks.category.back() = values_.text(value, "a block's category"); break;
      case kCategoryRule: blocks.category_rule.back() = values_.text(value, "a block's category_rule"); break;
      case kOwner: blocks.owner.back() = values_.text(value, "a block's owner"); break;
      case kHolder: blocks.holder.back() = values_.text(value, "a block's holder"); break;
      case kOwners: blocks.owners.back() = values_.integer(value, "a block's owners", kCount); break;
      case kBirthStep: blocks.birth_step.back() = values_.integer(value, "a block's birth_step", kCount); break;
      default: read_backward("block", items[i], value, backward);
    }
  }
  read_history(history, requested, stack);
  stack = with_backward(stack, backward);
  if (requested < 0) requested = size;
  return Value(Kind::block, blocks.size.size() - 1);
}

void RowBuilder::read_backward(std::string_view row, Value key, Value value, Backward& backward) {
  switch (key_number(key)) {
    case kForwardFrames: backward.forward = values_.forward_stack(value); break;
    case kForwardExact: backward.is_exact = value.is(Kind::boolean) && value.number() != 0; break;
    case kForwardPhase: backward.phase = values_.text(value, "a forward_phase"); break;
    case kAutogradNode: backward.node = values_.text(value, "an autograd_node"); break;
    default: note_unknown(row, key);
  }
}

uint32_t RowBuilder::with_backward(uint32_t stack, Backward backward) {
  if (backward.forward == 0 && backward.node == 0 && backward.phase == 0) return stack;
  if (backward.forward == 0) backward.is_exact = false;
  return tables_.stacks.intern(stack, backward);
}

// Before torch 2.1 a block has, instead of frames and requested_size, the list of its allocations,
// the latest one first.
void RowBuilder::read_history(Value list, int64_t& requested, uint32_t& stack) {
  Heap& heap = tables_.heap;
  if (!values_.is_list(list) || heap.items(list).empty()) return;
  const Value latest = heap.items(list)[0];
  if (!latest.is(Kind::object) || heap.shape(latest) != Shape::dict) return;
  const Items& items = heap.items(latest);
  for (size_t i = 0; i < std::min(items.size(), kMostItems); i += 2) {
    const uint32_t key = key_number(items[i]);
    if (key == kRealSize && requested < 0) {
      requested = values_.integer(items[i + 1], "a real_size", kRequestedBytes);
    }
    if (key == kFrames && stack == 0 && values_.is_list(items[i + 1])) {
      heap.share(items[i + 1]);  // the dict still refers to the list
      stack = values_.stack(items[i + 1]);
    }
  }
}

Value RowBuilder::segment(const Items& items) {
  SegmentColumns& segments = tables_.segments;
  segments.add_row();
  int64_t& address = segments.address.back();
  uint32_t& stack = segments.stack.back();
  Value block_list;
  Backward backward;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kDevice: segments.device.back() = values_.integer(value, "a segment's device", kDeviceIndex); break;
      case kAddress: address = values_.integer(value, "a segment's address", kAny); break;
      case kTotalSize: segments.size.back() = values_.integer(value, "a segment's total_size", kBytes); break;
      case kStream: segments.stream.back() = values_.integer(value, "a segment's stream", kAny); break;
      case kSegmentType: segments.kind.back() = values_.text(value, "a segment's segment_type"); break;
      case kSegmentPoolId: segments.pool.back() = values_.pool(value); break;
      case kIsExpandable: segments.is_expandable.back() = value.is(Kind::boolean) && value.number() != 0; break;
      case kFrames: stack = values_.stack(value); break;
      case kBlocks: block_list = value; break;
      case kAllocatedSize:
      case kActiveSize:
      case kRequestedSize: break;  // these follow from the blocks
      default: read_backward("segment", items[i], value, backward);
    }
  }
  stack = with_backward(stack, backward);
  RowRange blocks = values_.rows(block_list, Kind::block, "a segment's blocks");
  if (blocks.begin == blocks.end) blocks = {claimed_blocks_, claimed_blocks_};
  const size_t number = segments.size.size() - 1;
  if (blocks.begin != claimed_blocks_) damaged("the blocks of the segments are in another order");
  claimed_blocks_ = blocks.end;
  BlockColumns& all = tables_.blocks;
  int64_t next = address;
  for (uint64_t i = blocks.begin; i < blocks.end; ++i) {
    watch_.tick();
    all.segment[i] = static_cast<int64_t>(number);
    if (all.address[i] < 0) all.address[i] = next;
    if (__builtin_add_overflow(all.address[i], all.size[i], &next)) next = INT64_MAX;
  }
  segments.first_block.back() = static_cast<int64_t>(blocks.begin);
  return Value(Kind::segment, number);
}

void RowBuilder::note_unknown(std::string_view row, Value key) {
  if (!key.is(Kind::string) || tables_.unknown_keys.size() == kMostUnknownKeys) return;
  tables_.unknown_keys.emplace(row, key.index());
}

}  // namespace pytracer::reading
