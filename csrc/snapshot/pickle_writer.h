// Writes a pickle of protocol 4 with the opcodes that memory_viz's own unpickler knows.
//
// 1. The opcodes are PROTO, MARK, EMPTY_DICT, EMPTY_LIST, TUPLE2, APPENDS, SETITEMS, BININT, BININT1,
//    BININT2, LONG1, BINFLOAT, NEWTRUE, NEWFALSE, NONE, SHORT_BINUNICODE, BINUNICODE, BINPUT,
//    LONG_BINPUT, BINGET, LONG_BINGET, STOP. Integers are below 2^63.
// 2. Each object is written once: remember() gives it a number, recall() refers to that number.
// 3. Bytes pass through one fixed buffer, so memory does not grow with the output.
// 4. One thread. Throws what the sink throws.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

#include "snapshot/sinks.h"

namespace pytracer {

class PickleWriter {
 public:
  using Memo = uint32_t;

  explicit PickleWriter(ByteSink& sink);

  void begin() { put("\x80\x04", 2); }
  void end();    // writes STOP and flushes
  void flush();  // hands the buffer to the sink

  // A dict is written as dict() k v k v ... set_items(), a list as list() a b c ... append_items().
  void dict() { put("}(", 2); }
  void set_items() { put("u", 1); }
  void list() { put("](", 2); }
  void append_items() { put("e", 1); }
  // Must precede each item of a list that may be long; `items` counts the items. memory_viz passes a
  // batch as the arguments of one call, of which JavaScript engines allow some ten thousand.
  void next_item(uint64_t& items) {
    if (items++ % kBatch == 0 && items > 1) put("e(", 2);
  }
  // list() in two parts, so that remember() can come in between.
  void empty_list() { put("]", 1); }
  void mark() { put("(", 1); }
  void tuple2() { put("\x86", 1); }
  void none() { put("N", 1); }
  void boolean(bool value) { put(value ? "\x88" : "\x89", 1); }
  void real(double value);
  void string(std::string_view text);
  // Copies a fragment that another writer made without memo references.
  void raw(std::string_view fragment) { put_long(fragment.data(), fragment.size()); }

  void integer(int64_t value) {
    if (value >= 0 && value <= 0xff) {
      put_opcode('K', static_cast<uint8_t>(value));  // BININT1
    } else if (value >= 0 && value <= 0xffff) {
      put_opcode('M', static_cast<uint16_t>(value));  // BININT2
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      put_opcode('J', static_cast<int32_t>(value));  // BININT
    } else {
      // LONG1 takes the shortest two's complement. Eight bytes are copied, `size` of them are kept.
      const int leading = __builtin_clrsbll(value);
      const uint8_t size = static_cast<uint8_t>((64 - leading + 7) / 8);
      put_opcode('\x8a', size);
      put(reinterpret_cast<const char*>(&value), sizeof(value));
      used_ -= sizeof(value) - size;
    }
  }

  // Gives the object that was just written a number for recall().
  Memo remember() {
    put_memo(next_memo_);
    return next_memo_++;
  }
  void recall(Memo memo) {
    if (memo <= 0xff) {
      put_opcode('h', static_cast<uint8_t>(memo));  // BINGET
    } else {
      put_opcode('j', memo);  // LONG_BINGET
    }
  }

  // Writes an object the first time and recalls it from then on. `memo` is 0 before the first time.
  template <class Write>
  void once(Memo& memo, const Write& write) {
    if (memo != 0) return recall(memo);
    write();
    memo = remember();
  }

  // A string that is written in full the first time and recalled in two bytes from then on: the key
  // of a dict, or one of few values. A writer takes at most kMaxKeys of them.
  class Key {
   public:
    explicit constexpr Key(const char* text) : text_(text) {}

   private:
    friend class PickleWriter;
    const char* text_;
    Memo memo_ = 0;  // 0: not written yet
  };
  void key(Key& key) {
    if (key.memo_ != 0) return recall(key.memo_);
    string(key.text_);
    key.memo_ = next_key_++;
    put_memo(key.memo_);
  }

 private:
  static constexpr Memo kMaxKeys = 95;
  static constexpr uint32_t kBatch = 1000;  // as in CPython's pickler
  static constexpr size_t kBufferSize = 1 << 18;
  static constexpr size_t kMargin = 16;

  // Copies fewer than kMargin bytes.
  void put(const char* data, size_t size) {
    if (used_ + kMargin > kBufferSize) flush();
    std::memcpy(&buffer_[used_], data, size);
    used_ += size;
  }
  template <class Integer>
  void put_opcode(char opcode, Integer argument) {
    char bytes[1 + sizeof(argument)] = {opcode};
    std::memcpy(bytes + 1, &argument, sizeof(argument));
    put(bytes, sizeof(bytes));
  }
  void put_long(const char* data, size_t size);
  void put_memo(Memo memo) {
    if (memo <= 0xff) {
      put_opcode('q', static_cast<uint8_t>(memo));  // BINPUT
    } else {
      put_opcode('r', memo);  // LONG_BINPUT
    }
  }

  ByteSink& sink_;
  std::unique_ptr<char[]> buffer_;
  size_t used_ = 0;
  Memo next_key_ = 1;  // below 256, where references are short
  Memo next_memo_ = kMaxKeys + 1;
};

}  // namespace pytracer
