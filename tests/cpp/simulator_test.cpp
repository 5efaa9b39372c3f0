#include "simulator/simulate.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"

using namespace pytracer;
using namespace pytracer::simulator;

namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;

// Requests of a program, in the order of the calls. Blocks are numbered by their allocations.
class Program {
 public:
  int64_t allocate(uint64_t bytes, int64_t stream = 0, int64_t pool = 0) {
    add(Kind::allocate, blocks_, static_cast<int64_t>(bytes), stream, pool);
    return blocks_++;
  }
  void free(int64_t block) { add(Kind::free, block); }
  void leave(int64_t block) { add(Kind::leave, block); }
  void empty_cache() { add(Kind::empty_cache, -1); }
  void add(Kind kind, int64_t block, int64_t bytes = 0, int64_t stream = 0, int64_t pool = 0) {
    kind_.push_back(static_cast<uint8_t>(kind));
    block_.push_back(block);
    bytes_.push_back(bytes);
    stream_.push_back(stream);
    pool_.push_back(pool);
  }

  Simulated run(const Rules& rules, const Start* start = nullptr) const {
    reading::Watch watch;
    const Requests requests{kind_.size(),  kind_.data(),   block_.data(),
                            bytes_.data(), stream_.data(), pool_.data()};
    return simulate(requests, rules, {true, true, true}, watch, start);
  }

  // The address of the last request, which is an allocation.
  uint64_t last_address(const Rules& rules) const {
    const Simulated done = run(rules);
    return static_cast<uint64_t>(done.address.data()[kind_.size() - 1]);
  }

  size_t size() const { return kind_.size(); }
  Kind kind(size_t i) const { return static_cast<Kind>(kind_[i]); }
  int64_t block(size_t i) const { return block_[i]; }
  int64_t bytes(size_t i) const { return bytes_[i]; }

 private:
  std::vector<uint8_t> kind_;
  std::vector<int64_t> block_, bytes_, stream_, pool_;
  int64_t blocks_ = 0;
};

// Where the first block of a device begins.
uint64_t begin_of(const Rules& rules) {
  Program program;
  program.allocate(kMiB);
  return program.last_address(rules);
}

bool is_refused(const Program& program) {
  try {
    program.run({});
    return false;
  } catch (const RequestError&) {
    return true;
  }
}

TEST(the_simulator_divides_powers_of_two) {
  Rules rules;
  // One number of parts for all powers of two.
  rules.divisions.fill(4);
  CHECK(rules.rounded(1200) == 1536);  // parts of 256 bytes are too small: 512
  CHECK(rules.rounded(5 * kMiB + 1) == 6 * kMiB);
  CHECK(rules.rounded(8 * kMiB) == 8 * kMiB);
  CHECK(rules.rounded(9 * kMiB) == 10 * kMiB);
  // Another number for each power, of which 1 MiB is the first and 32 GiB the last.
  rules.divisions.fill(0);
  rules.divisions[2] = 2;
  rules.divisions[15] = 8;
  CHECK(rules.rounded(5 * kMiB) == 6 * kMiB);
  CHECK(rules.rounded(9 * kMiB + 1) == 9 * kMiB + 512);
  CHECK(rules.rounded(uint64_t{65} << 30) == uint64_t{72} << 30);
}

TEST(the_tie_of_equal_blocks_is_a_rule) {
  // GIVEN three free blocks of 12 MiB: that of the first segment was created last, and that of the
  // last segment is at the lowest address
  Program program;
  const int64_t low = program.allocate(20 * kMiB);
  const int64_t first = program.allocate(12 * kMiB);
  const int64_t second = program.allocate(12 * kMiB);
  program.free(low);
  program.empty_cache();
  const int64_t last = program.allocate(12 * kMiB);
  program.free(first);
  program.free(program.allocate(4 * kMiB));  // joins the rest, as a new block
  program.free(second);
  program.free(last);
  // WHEN one of them is taken
  program.allocate(12 * kMiB);
  // THEN the rule decides which one
  Rules rules;
  const uint64_t begin = begin_of(rules);
  rules.tie = Tie::by_address;
  CHECK(program.last_address(rules) == begin);
  rules.tie = Tie::by_segment;
  CHECK(program.last_address(rules) == begin + 20 * kMiB);
  rules.tie = Tie::by_creation;
  CHECK(program.last_address(rules) == begin + 32 * kMiB);
}

TEST(a_collection_that_waits_frees_left_blocks) {
  // GIVEN cached memory above the threshold, and a block whose free waits
  Rules rules;
  rules.collection_threshold = 0.5;
  rules.limit_bytes = 100 * kMiB;
  Program program;
  const int64_t cached = program.allocate(40 * kMiB);
  const int64_t left = program.allocate(20 * kMiB);
  program.free(cached);
  program.leave(left);
  program.allocate(30 * kMiB, 1);  // of another stream: collects
  program.allocate(20 * kMiB);
  // THEN it is free for the next allocation only if the collection waits for the device
  const auto is_reused = [&](bool waits) {
    rules.waits_to_release = waits;
    const Simulated done = program.run(rules);
    return done.address.data()[5] == done.address.data()[1];
  };
  CHECK(is_reused(true));
  CHECK(!is_reused(false));
}

TEST(a_collection_leaves_expandable_segments_alone) {
  // GIVEN expandable segments of 400 MiB each, and a collection above 300 MiB
  Rules rules;
  rules.expandable = true;
  rules.range_bytes = 400 * kMiB;
  rules.collection_threshold = 0.3;
  rules.limit_bytes = rules.device_bytes = rules.total_bytes = 1000 * kMiB;
  // WHEN a free block fills its segment, and another stream needs memory
  Program program;
  program.free(program.allocate(400 * kMiB));
  program.allocate(100 * kMiB, 1);
  const Simulated done = program.run(rules);
  // THEN the block stays, as in torch
  CHECK(done.counts.device_frees == 0 && done.counts.unmaps == 0);
  CHECK(done.counts.reserved_bytes == 500 * kMiB);
}

TEST(requests_that_no_program_makes_are_refused) {
  const int64_t large = INT64_MAX;
  for (const int64_t block : {int64_t{-1}, INT64_MIN, large}) {
    Program program;
    program.add(Kind::allocate, block, 512);
    CHECK(is_refused(program));
  }
  for (const auto& [bytes, stream, pool] :
       {std::array{int64_t{-1}, int64_t{0}, int64_t{0}}, {int64_t{1}, int64_t{-1}, int64_t{0}},
        {int64_t{1}, int64_t{0}, int64_t{-1}}, {INT64_MIN, int64_t{0}, int64_t{0}}}) {
    Program program;
    program.add(Kind::allocate, 0, bytes, stream, pool);
    CHECK(is_refused(program));
  }
  Program unknown_kind, twice;
  unknown_kind.add(static_cast<Kind>(6), 0);
  CHECK(is_refused(unknown_kind));
  twice.add(Kind::allocate, 0, 512);
  twice.add(Kind::allocate, 0, 512);
  CHECK(is_refused(twice));
  // The free of an unknown block has no effect, and no device has room for 2^62 bytes.
  Program harmless;
  harmless.add(Kind::free, 0);
  harmless.add(Kind::leave, 0);
  harmless.add(Kind::allocate, 0, int64_t{1} << 62);
  const Simulated done = harmless.run({});
  CHECK(done.oom_requests.size() == 1 && done.counts.peak_reserved_bytes == 0);
}

// Makes requests that may have no meaning: sizes of any magnitude, repeated frees.
Program any_program(std::mt19937_64& random) {
  Program program;
  const auto below = [&random](uint64_t end) { return static_cast<int64_t>(random() % end); };
  for (int i = 0; i < 200; ++i) {
    const auto kind = static_cast<Kind>(std::min<int64_t>(below(9), 5));
    const int64_t block = below(60);
    const int64_t bytes = below(uint64_t{1} << (1 + below(below(20) == 0 ? 62 : 27)));
    if (kind == Kind::allocate || below(3) == 0) {
      program.allocate(static_cast<uint64_t>(bytes), below(3), below(3));
    } else {
      program.add(kind, block, bytes, below(3), below(3));
    }
  }
  return program;
}

Rules any_rules(std::mt19937_64& random) {
  const auto one_of = [&random](std::initializer_list<uint64_t> values) {
    return values.begin()[random() % values.size()];
  };
  Rules rules;
  rules.padding_bytes = one_of({0, 32});
  rules.expandable = one_of({0, 1}) == 1;
  rules.max_split_bytes = one_of({kNoLimit, 32 * kMiB, 1});
  rules.large_segment_bytes = rules.large_page_bytes = one_of({20 * kMiB, 4 * kKiB, 64 * kMiB});
  rules.collection_threshold = random() % 2 == 0 ? 0 : 0.3;
  rules.waits_to_release = one_of({0, 1}) == 1;
  rules.range_bytes = one_of({0, 0, 1, 64 * kMiB});
  rules.alignment_bytes = one_of({0, 16 * kKiB});
  rules.divisions.fill(one_of({0, 1, 4, uint64_t{1} << 32}));
  rules.tie = static_cast<Tie>(random() % 3);
  rules.device_bytes = one_of({kNoLimit, 0, 100 * kMiB, 500 * kMiB});
  rules.limit_bytes = one_of({kNoLimit, 0, 90 * kMiB, 400 * kMiB});
  return rules;
}

TEST(any_requests_give_a_result_without_overlaps) {
  std::mt19937_64 random(7);
  uint64_t allocated = 0, failed = 0;
  for (int run = 0; run < 1500; ++run) {
    const Program program = any_program(random);
    const Rules rules = any_rules(random);
    const Simulated done = program.run(rules);
    std::map<int64_t, int64_t> live;     // address to bytes
    std::map<int64_t, int64_t> address;  // by block
    CHECK(done.counts.reserved_bytes >= done.counts.allocated_bytes);
    CHECK(done.counts.peak_reserved_bytes <= std::min({rules.device_bytes, kMostBytes}));
    failed += done.oom_requests.size();
    if (done.freed_early > 0) continue;  // the requests do not show which blocks are freed
    for (size_t i = 0; i < program.size(); ++i) {
      if (program.kind(i) == Kind::free && address.count(program.block(i)) > 0) {
        live.erase(address[program.block(i)]);
        address.erase(program.block(i));
      }
      if (program.kind(i) != Kind::allocate || done.address.data()[i] == 0) continue;
      const int64_t begin = done.address.data()[i], bytes = std::max<int64_t>(program.bytes(i), 1);
      const auto next = live.lower_bound(begin);
      CHECK(next == live.end() || begin + bytes <= next->first);
      CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= begin);
      live[begin] = bytes;
      address[program.block(i)] = begin;
      ++allocated;
    }
  }
  CHECK(allocated > 5'000);
  CHECK(failed > 1'000);
}

// Columns of a start: segments of 20 MiB, each with blocks of 5 MiB, of which every other is in use.
struct StartColumns {
  std::vector<int64_t> address, range, bytes, stream, pool, order;
  std::array<bool, 8> is_small{}, is_expandable{};
  std::vector<int64_t> block_segment, block_bytes, number, block_order;

  StartColumns(std::mt19937_64& random, size_t segments) {
    constexpr int64_t segment_bytes = int64_t{20} << 20;
    int64_t next = 0;
    for (size_t i = 0; i < segments; ++i) {
      is_small[i] = random() % 2 == 0;
      is_expandable[i] = random() % 2 == 0;
      const int64_t gap = random() % 2 == 0 ? segment_bytes : 0;
      address.push_back(i == 0 ? 0 : address.back() + segment_bytes + gap);
      range.push_back(0);
      bytes.push_back(segment_bytes);
      stream.push_back(static_cast<int64_t>(random() % 2));
      pool.push_back(static_cast<int64_t>(random() % 2));
      order.push_back(static_cast<int64_t>(i));
      for (int64_t block = 0; block < 4; ++block) {
        block_segment.push_back(static_cast<int64_t>(i));
        block_bytes.push_back(segment_bytes / 4);
        number.push_back(block % 2 == 0 ? next++ : -1);
        block_order.push_back(static_cast<int64_t>(block_order.size()));
      }
    }
  }

  Start view() const {
    return {address.size(),       address.data(),     range.data(),    bytes.data(),
            stream.data(),        pool.data(),        order.data(),    is_small.data(),
            is_expandable.data(), number.size(),      block_segment.data(),
            block_bytes.data(),   number.data(),      block_order.data()};
  }
};

TEST(a_start_serves_the_first_requests) {
  // GIVEN a segment with free blocks of 5 MiB, and blocks 0 and 1 in use
  std::mt19937_64 random(3);
  StartColumns columns(random, 1);
  columns.is_small[0] = columns.is_expandable[0] = false;
  columns.stream[0] = columns.pool[0] = 0;
  const Start start = columns.view();
  Program program;
  program.allocate(5 * kMiB);
  program.allocate(5 * kMiB);
  program.free(0);
  program.allocate(10 * kMiB);
  program.allocate(5 * kMiB);
  const Simulated done = program.run({}, &start);
  // THEN the allocations of these blocks are not made again, and the next ones use the free blocks
  CHECK(done.counts.device_allocs == 0);
  CHECK(done.counts.reserved_bytes == 20 * kMiB);
  CHECK(done.counts.allocated_bytes == 20 * kMiB);
}

TEST(any_start_is_used_or_refused) {
  std::mt19937_64 random(8);
  int used = 0, refused = 0;
  for (int run = 0; run < 1500; ++run) {
    const Program program = any_program(random);
    const Rules rules = any_rules(random);
    StartColumns columns(random, 1 + random() % 8);
    if (run % 3 == 0) {
      std::vector<int64_t>* const changed[] = {&columns.address,       &columns.range,
                                               &columns.bytes,         &columns.stream,
                                               &columns.pool,          &columns.order,
                                               &columns.block_segment, &columns.block_bytes,
                                               &columns.number,        &columns.block_order};
      const int64_t values[] = {-1, 0, 1, 511, INT64_MAX, INT64_MIN, int64_t{1} << 50};
      std::vector<int64_t>& column = *changed[random() % std::size(changed)];
      column[random() % column.size()] = values[random() % std::size(values)];
    }
    const Start start = columns.view();
    try {
      const Simulated done = program.run(rules, &start);
      CHECK(done.counts.reserved_bytes >= done.counts.allocated_bytes);
      ++used;
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(used > 500);
  CHECK(refused > 200);
}

}  // namespace
