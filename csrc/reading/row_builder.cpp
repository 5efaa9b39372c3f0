#include "row_builder.h"

#include <algorithm>

#include "actions.h"
#include "snapshot_keys.h"

namespace pytracer::reading {

namespace {

constexpr size_t kMostUnknownKeys = 64;
constexpr size_t kMostItems = 2 * 64;  // keys and values of a row; a longer dict is no row

constexpr uint64_t bit(Key key) { return uint64_t{1} << key; }
static_assert(kKeys <= 64, "row_kind() has a bit for each key");

}  // namespace

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
  uint8_t action = ActionRows::kNone;
  int64_t address = 0, size = 0, stream = 0, time = kNoTime;
  uint32_t stack = 0, pool = 0, compile_context = 0, user_metadata = 0;
  Value missing;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kAction: action = values_.action(value); break;
      case kAddr: address = values_.integer(value, "an event's address", kAny); break;
      case kDeviceFree: address = values_.integer(value, "an event's device_free", kBytes); break;
      case kSize: size = values_.integer(value, "an event's size", kCount); break;
      case kStream: stream = values_.integer(value, "an event's stream", kAny); break;
      case kTimeUs: time = values_.integer(value, "an event's time_us", kTime); break;
      case kFrames: stack = values_.stack(value); break;
      case kForwardFrames:
      case kForwardExact:
      case kForwardPhase:
      case kAutogradNode: break;  // with_backward() reads them
      case kPoolId: pool = values_.pool(value); break;
      case kCompileContext:
        compile_context = values_.text(value, "an event's compile_context");
        break;
      case kUserMetadata: user_metadata = values_.text(value, "an event's user_metadata"); break;
      case kAllocation: missing = value; break;
      default: note_unknown("event", items[i]);
    }
  }
  stack = with_backward(items, stack);
  if (!missing.is(Kind::none)) allocation(missing);
  EventColumns& events = tables_.events;
  events.action.push_back(action);
  events.address.push_back(address);
  events.size.push_back(size);
  events.stream.push_back(stream);
  events.time.push_back(time);
  events.stack.push_back(stack);
  events.pool.push_back(pool);
  events.compile_context.push_back(compile_context);
  events.user_metadata.push_back(user_metadata);
  return Value(Kind::event, events.action.size() - 1);
}

void RowBuilder::allocation(Value dict) {
  Heap& heap = tables_.heap;
  if (!dict.is(Kind::object) || heap.shape(dict) != Shape::dict) wrong_type("an event's allocation");
  const Items& items = heap.items(dict);
  if (items.size() > kMostItems) wrong_type("an event's allocation");
  int64_t birth_step = 0;
  uint32_t stack = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kFrames: stack = values_.stack(value); break;
      case kForwardFrames:
      case kForwardExact:
      case kForwardPhase:
      case kAutogradNode: break;  // with_backward() reads them
      case kBirthStep:
        birth_step = values_.integer(value, "an allocation's birth_step", kCount);
        break;
      default: note_unknown("allocation", items[i]);
    }
  }
  AllocationColumns& allocations = tables_.allocations;
  allocations.event.push_back(static_cast<int64_t>(tables_.events.action.size()));
  allocations.stack.push_back(with_backward(items, stack));
  allocations.birth_step.push_back(birth_step);
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
  int64_t address = -1, size = 0, requested = -1, owners = 0, birth_step = 0;
  uint8_t state = kInactive;
  uint32_t stack = 0, category = 0, rule = 0, owner = 0, holder = 0;
  Value history;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kAddress:
        address = values_.integer(value, "a block's address", kBlockAddress);
        break;
      case kSize: size = values_.integer(value, "a block's size", kBytes); break;
      case kRequestedSize:
        requested = values_.integer(value, "a block's requested_size", kRequestedBytes);
        break;
      case kState: state = values_.block_state(value); break;
      case kFrames: stack = values_.stack(value); break;
      case kForwardFrames:
      case kForwardExact:
      case kForwardPhase:
      case kAutogradNode: break;  // with_backward() reads them
      case kHistory: history = value; break;
      case kCategory: category = values_.text(value, "a block's category"); break;
      case kCategoryRule: rule = values_.text(value, "a block's category_rule"); break;
      case kOwner: owner = values_.text(value, "a block's owner"); break;
      case kHolder: holder = values_.text(value, "a block's holder"); break;
      case kOwners: owners = values_.integer(value, "a block's owners", kCount); break;
      case kBirthStep:
        birth_step = values_.integer(value, "a block's birth_step", kCount);
        break;
      default: note_unknown("block", items[i]);
    }
  }
  read_history(history, requested, stack);
  stack = with_backward(items, stack);
  BlockColumns& blocks = tables_.blocks;
  blocks.segment.push_back(0);
  blocks.address.push_back(address);
  blocks.size.push_back(size);
  blocks.requested.push_back(requested >= 0 ? requested : size);
  blocks.state.push_back(state);
  blocks.stack.push_back(stack);
  blocks.category.push_back(category);
  blocks.category_rule.push_back(rule);
  blocks.owner.push_back(owner);
  blocks.holder.push_back(holder);
  blocks.owners.push_back(owners);
  blocks.birth_step.push_back(birth_step);
  return Value(Kind::block, blocks.size.size() - 1);
}

// torch writes forward_frames alone, in anomaly mode, and they are exact.
uint32_t RowBuilder::with_backward(const Items& items, uint32_t stack) {
  StackRows::Backward backward{0, 0, 0, true};
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kForwardFrames: backward.forward = values_.forward_stack(value); break;
      case kForwardExact: backward.is_exact = value.is(Kind::boolean) && value.number() != 0; break;
      case kForwardPhase: backward.phase = values_.text(value, "a forward_phase"); break;
      case kAutogradNode: backward.node = values_.text(value, "an autograd_node"); break;
      default: break;
    }
  }
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
  int64_t device = 0, address = 0, size = 0, stream = 0;
  uint32_t kind = 0, pool = 0, stack = 0;
  bool is_expandable = false;
  Value block_list;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Value value = items[i + 1];
    switch (key_number(items[i])) {
      case kDevice: device = values_.integer(value, "a segment's device", kDeviceIndex); break;
      case kAddress: address = values_.integer(value, "a segment's address", kAny); break;
      case kTotalSize: size = values_.integer(value, "a segment's total_size", kBytes); break;
      case kStream: stream = values_.integer(value, "a segment's stream", kAny); break;
      case kSegmentType: kind = values_.text(value, "a segment's segment_type"); break;
      case kSegmentPoolId: pool = values_.pool(value); break;
      case kIsExpandable: is_expandable = value.is(Kind::boolean) && value.number() != 0; break;
      case kFrames: stack = values_.stack(value); break;
      case kForwardFrames:
      case kForwardExact:
      case kForwardPhase:
      case kAutogradNode: break;  // with_backward() reads them
      case kBlocks: block_list = value; break;
      case kAllocatedSize:
      case kActiveSize:
      case kRequestedSize: break;  // these follow from the blocks
      default: note_unknown("segment", items[i]);
    }
  }
  stack = with_backward(items, stack);
  RowRange blocks = values_.rows(block_list, Kind::block, "a segment's blocks");
  if (blocks.begin == blocks.end) blocks = {claimed_blocks_, claimed_blocks_};
  SegmentColumns& segments = tables_.segments;
  const size_t number = segments.size.size();
  claim_blocks(blocks, number, address);
  segments.device.push_back(device);
  segments.address.push_back(address);
  segments.size.push_back(size);
  segments.stream.push_back(stream);
  segments.first_block.push_back(static_cast<int64_t>(blocks.begin));
  segments.kind.push_back(kind);
  segments.pool.push_back(pool);
  segments.stack.push_back(stack);
  segments.is_expandable.push_back(is_expandable);
  return Value(Kind::segment, number);
}

// Assigns blocks to a segment that begins at `address`.
void RowBuilder::claim_blocks(RowRange rows, size_t segment, int64_t address) {
  BlockColumns& blocks = tables_.blocks;
  if (rows.begin != claimed_blocks_) damaged("the blocks of the segments are in another order");
  claimed_blocks_ = rows.end;
  int64_t next = address;
  for (uint64_t i = rows.begin; i < rows.end; ++i) {
    watch_.tick();
    blocks.segment[i] = static_cast<int64_t>(segment);
    if (blocks.address[i] < 0) blocks.address[i] = next;
    if (__builtin_add_overflow(blocks.address[i], blocks.size[i], &next)) next = INT64_MAX;
  }
}

void RowBuilder::note_unknown(std::string_view row, Value key) {
  if (!key.is(Kind::string) || tables_.unknown_keys.size() == kMostUnknownKeys) return;
  tables_.unknown_keys.emplace(row, key.index());
}

}  // namespace pytracer::reading
