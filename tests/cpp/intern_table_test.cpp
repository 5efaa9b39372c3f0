#include "support/intern_table.h"

#include <string>

#include "check.h"
#include "record/device_names.h"
#include "support/utf8.h"

using namespace pytracer;

TEST(strings_keep_their_numbers) {
  InternTable table(1 << 20);
  CHECK(table.intern("a") == 1 && table.intern("b") == 2 && table.intern("a") == 1);
  CHECK(table.intern(std::string_view("a\0b", 3)) == 3);
  CHECK(table.at(0).empty() && table.at(1) == "a" && table.at(3).size() == 3);
  for (int i = 0; i < 1000; ++i) table.intern("string " + std::to_string(i));
  for (int i = 0; i < 1000; ++i) {
    const std::string text = "string " + std::to_string(i);
    CHECK(table.at(table.intern(text)) == text);
  }
  CHECK(table.at(2) == "b" && table.dropped() == 0);
}

TEST(a_full_intern_table_drops_and_counts) {
  InternTable few_bytes(10);
  CHECK(few_bytes.intern("123456") == 1 && few_bytes.intern("12345") == 0);
  CHECK(few_bytes.intern("1234") == 2 && few_bytes.intern("x") == 0);
  CHECK(few_bytes.intern("123456") == 1 && few_bytes.dropped() == 2);
  InternTable many(1 << 20);
  for (uint32_t i = 1; i <= UINT16_MAX; ++i) CHECK(many.intern(std::to_string(i)) == i);
  CHECK(many.intern("one more") == 0 && many.intern("65535") == UINT16_MAX);
}

TEST(pools_and_labels_have_names) {
  DeviceNames names;
  CHECK(names.intern_pool(0, 0) == 0);
  const uint16_t pool = names.intern_pool(1, UINT64_MAX);
  CHECK(pool != 0 && names.intern_pool(1, 2) != pool);
  CHECK(names.pool(pool).high == 1 && names.pool(pool).low == UINT64_MAX);
  CHECK(names.pool(0).high == 0 && names.pool(0).low == 0);
  const pytracer_labels given = {"0/0", "", "internal"};
  const DeviceNames::Labels labels = names.labels(names.intern_labels(given));
  CHECK(names.text(labels.compile_context) == "0/0" && labels.user_metadata == 0);
  CHECK(names.text(labels.internal_metadata) == "internal");
  CHECK(names.labels(0).compile_context == 0 && names.dropped() == 0);
}

TEST(utf8_is_valid_where_python_decodes_it) {
  for (const char* good : {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf",
                           "\xf4\x8f\xbf\xbf"}) {
    CHECK(is_utf8(good));
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xc3(", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xff"}) {
    CHECK(!is_utf8(bad));
  }
}
