#include "reading/history.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "check.h"

using namespace pytracer::reading;

namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kAt = int64_t{1} << 40;

struct Event {
  uint8_t action;
  int64_t address, size;
};

struct StateRow {
  int64_t address, size;
  bool flag;                   // is_expandable of a segment, is_pending of a block
  int64_t requested = 0;
};

struct Arrays {
  std::vector<Event> trace;
  std::vector<StateRow> segments, blocks;
  AllocatorRules rules;

  History replayed() const {
    std::vector<uint8_t> action;
    std::vector<int64_t> address, size, segment_address, segment_size, block_address, block_size;
    std::vector<int64_t> requested;
    std::vector<char> is_expandable, is_pending;
    for (const Event& event : trace) {
      action.push_back(event.action);
      address.push_back(event.address);
      size.push_back(event.size);
    }
    for (const StateRow& segment : segments) {
      segment_address.push_back(segment.address);
      segment_size.push_back(segment.size);
      is_expandable.push_back(segment.flag);
    }
    for (const StateRow& block : blocks) {
      block_address.push_back(block.address);
      block_size.push_back(block.size);
      requested.push_back(block.requested);
      is_pending.push_back(block.flag);
    }
    Watch watch;
    return replay({trace.size(), action.data(), address.data(), size.data()},
                  {segments.size(), segment_address.data(), segment_size.data(),
                   reinterpret_cast<const bool*>(is_expandable.data()), blocks.size(),
                   block_address.data(), block_size.data(), requested.data(),
                   reinterpret_cast<const bool*>(is_pending.data())},
                  rules, watch);
  }

  // Returns the message of the contradiction, or "" if there is none.
  std::string contradiction() const {
    try {
      replayed();
      return "";
    } catch (const ContradictionError& error) {
      return error.what();
    }
  }
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void check_sound(const History& history) {
  const Usage& usage = history.usage;
  for (size_t i = 0; i < usage.segments.size(); ++i) {
    CHECK(usage.requested_bytes[i] >= 0 && usage.segments[i] >= 0);
    CHECK(usage.allocated_bytes[i] >= 0 && usage.allocated_bytes[i] <= usage.active_bytes[i]);
    CHECK(usage.active_bytes[i] <= usage.reserved_bytes[i]);
    const int64_t free = usage.reserved_bytes[i] - usage.active_bytes[i];
    CHECK(usage.largest_free_bytes[i] >= 0 && usage.largest_free_bytes[i] <= free);
    CHECK(usage.inactive_split_bytes[i] >= 0 && usage.inactive_split_bytes[i] <= free);
  }
}

}  // namespace

TEST(a_trace_is_replayed) {
  const Arrays arrays{{{kSegmentAlloc, kAt, 2 * kMiB},
                       {kAlloc, kAt, 1000},
                       {kAlloc, kAt + 1024, 100},
                       {kFreeRequested, kAt, 1000},
                       {kFreeCompleted, kAt, 1000}},
                      {{kAt, 2 * kMiB, false}},
                      {{kAt + 1024, 512, false, 100}},
                      {}};
  const History history = arrays.replayed();
  const Usage& usage = history.usage;
  CHECK(usage.active_bytes.size() == 6 && history.exact_from == 0);
  CHECK(usage.active_bytes[0] == 0 && usage.active_bytes[3] == 1536);
  CHECK(usage.allocated_bytes[4] == 512 && usage.active_bytes[4] == 1536);
  CHECK(usage.active_bytes[5] == 512 && usage.requested_bytes[5] == 100);
  CHECK(usage.inactive_split_bytes[1] == 0);
  CHECK(usage.inactive_split_bytes[5] == 2 * kMiB - 512);
  CHECK(usage.largest_free_bytes[5] == 2 * kMiB - 1536);
  CHECK(history.blocks.size_bytes[0] == 1024 && history.blocks.free_event[0] == 4);
  CHECK(history.blocks.state_block[1] == 0 && history.blocks.free_event[1] == 5);
}

TEST(contradictions_are_named) {
  const StateRow segment{kAt, 20 * kMiB, false};
  const auto misfit = [&](std::vector<Event> trace, std::vector<StateRow> blocks = {}) {
    return Arrays{std::move(trace), {segment}, std::move(blocks), {}}.contradiction();
  };
  CHECK(misfit({}).empty());
  CHECK(misfit({{kAlloc, kAt, 10}}) ==
        "event 0, alloc of 10 bytes at 0x10000000000: there is no such block afterwards");
  CHECK(contains(misfit({{7, 0, 0}, {kFreeRequested, kAt, 10}}), "event 1, free_requested"));
  CHECK(contains(misfit({{kFreeCompleted, kAt, 10}}, {{kAt, 512, false, 10}}), "another block"));
  CHECK(contains(misfit({{kFreeCompleted, kAt, 600}}, {{kAt + 512, 512, false, 10}}),
                 "another block"));
  CHECK(contains(misfit({{kFreeCompleted, kAt - 512, 600}}), "there is no segment"));
  CHECK(contains(misfit({{kFreeRequested, kAt, 9}}, {{kAt, 512, true, 10}}), "another size"));
  CHECK(contains(misfit({{kFreeRequested, kAt, 10}}, {{kAt, 512, false, 10}}), "not freed after"));
  CHECK(contains(misfit({{kSegmentAlloc, kAt, 2 * kMiB}}), "no such segment"));
  CHECK(contains(misfit({{kSegmentAlloc, kAt, 20 * kMiB}}, {{kAt, 512, false, 10}}), "is older"));
  CHECK(contains(misfit({{kSegmentFree, kAt, 2 * kMiB}}), "another segment is there"));
  CHECK(contains(misfit({{kSegmentMap, kAt, 2 * kMiB}}), "not mapped after"));
  CHECK(contains(misfit({}, {{kAt, 512, false, 513}}), "less than was requested"));
  CHECK(contains(misfit({}, {{kAt, 512, false, -1}}), "less than was requested"));
  CHECK(contains(misfit({}, {{kAt, 1024, false, 1}, {kAt + 512, 512, false, 1}}), "another block"));
  CHECK(contains(misfit({}, {{kAt + 20 * kMiB, 512, false, 1}}), "there is no segment"));
  // A block that was freed without a request, in a file that has requests of frees.
  CHECK(contains(misfit({{kAlloc, kAt, 10},
                     {kFreeCompleted, kAt, 10},
                     {kAlloc, kAt, 10},
                     {kFreeRequested, kAt, 10},
                     {kFreeCompleted, kAt, 10}}),
                 "event 0, alloc of 10 bytes at 0x10000000000: the trace does not have"));
  // A block whose size in the final state exceeds the memory that was free at its allocation.
  CHECK(contains(misfit({{kAlloc, kAt, 2 * kMiB}, {kFreeRequested, kAt + 2 * kMiB, 2 * kMiB},
                     {kFreeCompleted, kAt + 2 * kMiB, 2 * kMiB}},
                    {{kAt, 20 * kMiB, false, 2 * kMiB}}),
                 "another block"));
}

TEST(impossible_sizes_and_addresses) {
  constexpr int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX - 511, INT64_MAX};
  for (uint8_t action = kAlloc; action <= kSegmentUnmap; ++action) {
    for (const int64_t extreme : extremes) {
      for (const int64_t address : {kAt, extreme}) {
        for (const int64_t size : {int64_t{512}, extreme}) {
          if ((address == kAt || address == 0) && size == 512) continue;
          Arrays arrays{{{action, address, size}}, {}, {}, {}};
          CHECK(!arrays.contradiction().empty());
          arrays.segments = {{kAt, 20 * kMiB, true}};
          if (size != 0) CHECK(!arrays.contradiction().empty());
          arrays.trace.clear();
          arrays.segments = {{address, size, false}};
          const bool can_be = address >= 0 && address < INT64_MAX / 2 && size == 512;
          CHECK(arrays.contradiction().empty() == can_be);
        }
      }
    }
  }
}

// Arrays with any content give a consistent answer or a contradiction.
TEST(arrays_with_any_content) {
  std::mt19937_64 random(6);
  const auto below = [&](uint64_t end) { return random() % end; };
  int fitting = 0;
  const int rounds = amount(5000, 20000);
  for (int round = 0; round < rounds; ++round) {
    // Possible events of a device: blocks at separate addresses, in segments that come and go.
    Arrays arrays;
    const bool is_expandable = below(2) == 0;
    bool is_there[4] = {};
    int64_t requested[4][4] = {};
    for (uint64_t i = 1 + below(40); i > 0; --i) {
      const uint64_t segment = below(4), place = below(4);
      const int64_t begin = kAt + static_cast<int64_t>(segment) * 8 * kMiB;
      const int64_t address = begin + static_cast<int64_t>(place) * 2 * kMiB;
      int64_t& size = requested[segment][place];
      const int64_t* sizes = requested[segment];
      if (!is_there[segment] || (below(3) == 0 && std::count(sizes, sizes + 4, 0) == 4)) {
        is_there[segment] = !is_there[segment];
        const int way = is_there[segment] ? 0 : 1;
        const int kind = (is_expandable ? kSegmentMap : kSegmentAlloc) + way;
        arrays.trace.push_back({static_cast<uint8_t>(kind), begin, 8 * kMiB});
      } else if (size == 0) {
        size = 1 + static_cast<int64_t>(below(2 * kMiB - 64));
        arrays.trace.push_back({kAlloc, address, size});
      } else {
        arrays.trace.push_back({kFreeRequested, address, size});
        arrays.trace.push_back({kFreeCompleted, address, size});
        size = 0;
      }
    }
    for (int segment = 0; segment < 4; ++segment) {
      const int64_t begin = kAt + segment * 8 * kMiB;
      if (is_there[segment]) arrays.segments.push_back({begin, 8 * kMiB, is_expandable});
      for (int place = 0; place < 4; ++place) {
        const int64_t size = requested[segment][place];
        const int64_t rounded = (size + 511) / 512 * 512;
        if (size > 0) arrays.blocks.push_back({begin + place * 2 * kMiB, rounded, false, size});
      }
    }
    // Impossible events.
    const auto spoil = [&](int64_t& number) {
      number = below(4) == 0 ? static_cast<int64_t>(random() >> below(64))
                             : number + (static_cast<int64_t>(below(9)) - 4) * 512;
    };
    for (uint64_t i = below(3); i > 0; --i) {
      Event& event = arrays.trace[below(arrays.trace.size())];
      if (below(3) == 0) event.action = static_cast<uint8_t>(below(8));
      spoil(below(2) == 0 ? event.address : event.size);
    }
    if (below(3) == 0) arrays.trace.push_back({7, 0, 0});
    if (below(3) == 0 && arrays.trace.size() > 1) arrays.trace.erase(arrays.trace.begin());
    if (below(8) == 0) std::swap(arrays.trace.front(), arrays.trace.back());
    for (std::vector<StateRow>* part : {&arrays.segments, &arrays.blocks}) {
      if (part->empty() || below(8) != 0) continue;
      StateRow& row = (*part)[below(part->size())];
      spoil(below(3) == 0 ? row.requested : below(2) == 0 ? row.address : row.size);
      row.flag = below(2) == 0;
    }
    arrays.rules.may_expand = below(2) == 0;
    arrays.rules.has_pools = below(8) != 0;
    arrays.rules.are_known = below(8) != 0;
    arrays.rules.padding_bytes = below(2) * 32;
    arrays.rules.is_padding_known = below(2) == 0;
    if (below(4) == 0) arrays.rules.divisions.fill(random() >> below(64));
    if (below(2) == 0) arrays.rules.max_split_bytes = random() >> below(64);
    try {
      check_sound(arrays.replayed());
      ++fitting;
    } catch (const ContradictionError&) {
    }
  }
  std::printf("  %d fit\n", fitting);
  CHECK(fitting > rounds / 5 && fitting < rounds - rounds / 5);
}
