#include "record/live_table.h"

#include <atomic>
#include <map>
#include <mutex>
#include <random>

#include "check.h"
#include "threads.h"

using namespace pytracer;

namespace {
bool insert(LiveTable& table, uint64_t address, uint64_t size) {
  return table.insert(address, size, static_cast<uint32_t>(size)).done;
}
bool remove(LiveTable& table, uint64_t address) {
  const LiveBlock* const taken = table.take(address);
  CHECK(taken == nullptr || taken->address == address);
  return taken != nullptr;
}
void check_same(const std::vector<LiveBlock>& live, const std::map<uint64_t, uint64_t>& model) {
  CHECK(live.size() == model.size());
  auto expected = model.begin();
  for (const LiveBlock& block : live) {
    CHECK(block.address == expected->first && block.size == expected->second);
    CHECK(block.stack == static_cast<uint32_t>(block.size));
    ++expected;
  }
}
}  // namespace

TEST(live_table_equals_a_map) {
  LiveTable table(3000);
  SpinLock writer_lock;
  std::map<uint64_t, uint64_t> model;
  std::mt19937_64 random(1);
  for (int i = 0; i < 60'000; ++i) {
    const uint64_t address = 64 * (1 + random() % 5000);
    if (random() % 2 == 0) {
      const uint64_t size = 1 + random() % 1000;
      CHECK(remove(table, address) == (model.erase(address) != 0));
      const bool fits = model.size() < 3000;
      CHECK(insert(table, address, size) == fits);
      if (fits) model[address] = size;
    } else {
      const LiveBlock* found = table.find(address);
      CHECK((found != nullptr) == (model.count(address) != 0));
      if (found != nullptr) CHECK(found->size == model[address]);
      CHECK(remove(table, address) == (model.erase(address) != 0));
      CHECK(table.find(address) == nullptr);
    }
    if (i % 10'000 == 0) {
      table.freeze();
      check_same(table.collect(writer_lock), model);
      table.thaw(writer_lock);
    }
  }
  uint64_t bytes = 0;
  for (const auto& [address, size] : model) bytes += size;
  CHECK(table.blocks() == model.size() && table.block_bytes() == bytes);
  CHECK(table.committed_bytes() <= table.max_bytes());
}

TEST(a_frozen_live_table_keeps_removed_blocks) {
  LiveTable table(100);
  SpinLock writer_lock;
  std::map<uint64_t, uint64_t> model;
  for (uint64_t i = 1; i <= 50; ++i) {
    insert(table, i * 64, i);
    model[i * 64] = i;
  }
  for (int round = 0; round < 3; ++round) {
    table.freeze();
    const auto frozen = model;
    for (uint64_t i = 1; i <= 25; ++i) CHECK(remove(table, i * 64));  // removed
    for (uint64_t i = 1; i <= 10; ++i) insert(table, i * 64, 1000 + i);  // reused address
    for (uint64_t i = 1; i <= 5; ++i) CHECK(remove(table, i * 64));
    CHECK(remove(table, 30 * 64));
    insert(table, 30 * 64, 77);
    check_same(table.collect(writer_lock), frozen);
    table.thaw(writer_lock);
    model[30 * 64] = 77;
    for (uint64_t i = 1; i <= 25; ++i) model.erase(i * 64);
    for (uint64_t i = 6; i <= 10; ++i) model[i * 64] = 1000 + i;
    table.freeze();
    check_same(table.collect(writer_lock), model);
    table.thaw(writer_lock);
    for (uint64_t i = 1; i <= 25; ++i) {
      remove(table, i * 64);
      insert(table, i * 64, i);
      model[i * 64] = i;
    }
  }
}

// Writers continue while one reader freezes, collects and thaws: each view is of one instant.
TEST(live_table_views_are_consistent_under_fire) {
  LiveTable table(4096);
  SpinLock writer_lock;
  std::atomic<uint64_t> next{0};
  // 100 or 101 blocks are always alive, with consecutive sizes.
  const Repeated writer([&] {
    std::lock_guard lock(writer_lock);
    ++next;
    CHECK(insert(table, 64 * (1 + next % 1000), next));
    if (next > 100) CHECK(remove(table, 64 * (1 + (next - 100) % 1000)));
  });
  for (int i = 0; i < 300 || next < 20'000; ++i) {
    {
      std::lock_guard lock(writer_lock);
      table.freeze();
    }
    const std::vector<LiveBlock> live = table.collect(writer_lock);
    table.thaw(writer_lock);
    CHECK(live.size() <= 100);
    uint64_t least = ~0ull, most = 0;
    for (const LiveBlock& block : live) {
      least = std::min(least, block.size);
      most = std::max(most, block.size);
    }
    if (!live.empty()) CHECK(most - least + 1 == live.size());
  }
}
