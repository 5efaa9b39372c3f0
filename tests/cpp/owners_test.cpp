#include "view/owners.h"

#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "record/live_table.h"

using namespace pytracer;

namespace {

constexpr uint32_t kEpoch = 5;  // of the mark

Owner owner(uint64_t address, uint64_t size, Category category, const char* name) {
  return {address, size, 0, category, Rule::module, name};
}

Owners::Found find(std::vector<Owner> owners, uint64_t address, uint64_t size,
                   uint32_t epoch = kEpoch - 1) {
  const Owners all({{0, kEpoch, 0, true}}, std::move(owners), {}, {}, {});
  const LiveBlock live{address, size, 0, 0, 0, 0, epoch};
  Owners::Found found = all.find(address, size, &live, {}, 0);
  found.first = nullptr;  // gone with `all`
  return found;
}

}  // namespace

TEST(a_block_has_the_owners_within_it) {
  const std::vector<Owner> owners = {owner(300, 100, Category::buffer, "after"),
                                     owner(100, 100, Category::parameter, "a"),
                                     owner(100, 100, Category::parameter, "tied"),
                                     owner(250, 51, Category::gradient, "beyond the end")};
  CHECK(find(owners, 100, 200).category == Category::parameter);
  CHECK(find(owners, 100, 200).count == 2);
  CHECK(find(owners, 100, 99).category == Category::unknown);
  CHECK(find(owners, 101, 100).rule == Rule::no_owner);
  CHECK(find(owners, 300, 100).category == Category::buffer);
  CHECK(find({}, 300, 100).rule == Rule::no_owner);
}

TEST(owners_of_other_bytes_make_a_block_mixed) {
  const Owner parameter = owner(100, 50, Category::parameter, "p");
  CHECK(find({parameter, owner(100, 50, Category::optimizer_state, "same bytes")}, 100, 100)
            .category == Category::parameter);
  CHECK(find({parameter, owner(100, 100, Category::optimizer_state, "more bytes")}, 100, 100)
            .category == Category::mixed);
  CHECK(find({parameter, owner(150, 50, Category::gradient, "g")}, 100, 100).rule ==
        Rule::several);
  CHECK(find({parameter, owner(150, 50, Category::parameter, "q")}, 100, 100).category ==
        Category::parameter);
}

TEST(the_largest_owner_names_a_block) {
  const Owners owners({{0, kEpoch, 0, true}},
                      {owner(100, 10, Category::parameter, "small"),
                       owner(120, 50, Category::parameter, "large"),
                       owner(180, 20, Category::parameter, "last")},
                      {}, {3, 2, true, 0}, {});
  const LiveBlock live{100, 100, 0, 0, 0, 0, 0};
  CHECK(owners.find(100, 100, &live, {}, 0).first->name == "large");
  CHECK(owners.count() == 3 && owners.missing().gradients == 2);
}

TEST(a_block_that_is_a_workspace_has_it_as_its_owner) {
  const Owners owners({{0, kEpoch, 0, true}},
                      {{100, 1, 0, Category::workspace, Rule::cublas, "cuBLAS workspace"}}, {},
                      {}, {});
  const LiveBlock live{100, 512, 0, 0, 0, 0, 0};
  const Owners::Found found = owners.find(100, 512, &live, {}, 0);
  CHECK(found.category == Category::workspace && found.rule == Rule::cublas);
  CHECK(found.first->name == "cuBLAS workspace" && found.count == 1);
  CHECK(std::string(kCategoryNames[static_cast<int>(Category::workspace)]) == "workspace");
  CHECK(std::string(kRuleNames[static_cast<int>(Rule::cublas)]) == "cublas");
}

TEST(a_block_has_the_first_holder_within_it) {
  const std::vector<Owner> owners = {owner(100, 50, Category::parameter, "p"),
                                     owner(400, 50, Category::activation, "node.saved"),
                                     owner(800, 50, Category::parameter, "q")};
  const std::vector<Holder> holders = {{700, 0, ""},      {410, 0, "losses of main()"},
                                       {420, 0, "later"}, {100, 0, "models of main()"},
                                       {900, 1, "another device"}};
  // The text of a block of 100 bytes; "null": it may have a holder that was not looked for.
  const auto holder = [&](uint64_t address, bool is_cut_short = false) -> std::string {
    const Owners all({{0, kEpoch, 0, true}}, owners, holders, {}, is_cut_short ? "" : "no tensor");
    const LiveBlock live{address, 100, 0, 0, 0, 0, 0};
    const std::string* found = all.find(address, 100, &live, {}, 0).holder;
    return found == nullptr ? "null" : *found;
  };
  CHECK(holder(400) == "losses of main()");
  CHECK(holder(411) == "later");
  CHECK(holder(100) == "models of main()");  // what keeps the model
  CHECK(holder(800) == "null");  // its owner is a Python tensor
  CHECK(holder(700) == "null");  // a tensor that nobody was found to hold
  CHECK(holder(900) == "no tensor" && holder(900, true) == "null");
}

TEST(a_block_that_may_be_younger_than_the_owners_has_none) {
  const Owner parameter = owner(100, 50, Category::parameter, "p");
  CHECK(find({parameter}, 100, 100, kEpoch - 1).category == Category::parameter);
  CHECK(find({parameter}, 100, 100, kEpoch).rule == Rule::too_new);
  const Owners owners({{0, kEpoch, 7, true}}, {parameter}, {}, {}, {});
  DeviceLog::Capture capture{};
  // A block that the live table does not have is older than the recording, or was dropped.
  capture.ever_dropped = 7;
  CHECK(owners.find(100, 100, nullptr, capture, 0).category == Category::parameter);
  capture.ever_dropped = 8;
  CHECK(owners.find(100, 100, nullptr, capture, 0).rule == Rule::too_new);
  // The owners of another device say nothing.
  CHECK(owners.find(100, 100, nullptr, capture, 1).category == Category::unknown);
}

TEST(marks_tell_older_blocks_from_younger_ones) {
  LiveTable table(10);
  CHECK(table.insert(64, 8, 0).done);
  const uint32_t mark = table.mark();
  CHECK(table.find(64)->epoch < mark);
  CHECK(table.insert(128, 8, 0).done && table.find(128)->epoch >= mark);
  // A table in another's place goes on: the mark is older than all its blocks.
  LiveTable next(10);
  next.follow(table);
  CHECK(next.insert(64, 8, 0).done && next.find(64)->epoch >= mark);
  CHECK(next.mark() > next.find(64)->epoch);
}
