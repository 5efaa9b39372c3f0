#include <algorithm>

#include "row_builder.h"

namespace pytracer::reading {

namespace {

// The opcodes that are executed, with the names of Python's pickletools.
enum Opcode : unsigned char {
  PROTO = 0x80, FRAME = 0x95, STOP = '.',
  MARK = '(', POP = '0', POP_MARK = '1', DUP = '2',
  NONE = 'N', NEWTRUE = 0x88, NEWFALSE = 0x89,
  BININT = 'J', BININT1 = 'K', BININT2 = 'M', LONG1 = 0x8a, LONG4 = 0x8b, BINFLOAT = 'G',
  SHORT_BINUNICODE = 0x8c, BINUNICODE = 'X', BINUNICODE8 = 0x8d,
  EMPTY_LIST = ']', APPEND = 'a', APPENDS = 'e', LIST = 'l',
  EMPTY_TUPLE = ')', TUPLE = 't', TUPLE1 = 0x85, TUPLE2 = 0x86, TUPLE3 = 0x87,
  EMPTY_DICT = '}', DICT = 'd', SETITEM = 's', SETITEMS = 'u',
  BINGET = 'h', LONG_BINGET = 'j', BINPUT = 'q', LONG_BINPUT = 'r', MEMOIZE = 0x94,
  GLOBAL = 'c', INST = 'i', STACK_GLOBAL = 0x93,
};

struct Refused {
  unsigned char opcode;
  const char* what;
};
constexpr Refused kRefused[] = {
    {'R', "a call (REDUCE)"}, {'b', "the state of an object (BUILD)"},
    {'o', "an object (OBJ)"}, {0x81, "an object (NEWOBJ)"}, {0x92, "an object (NEWOBJ_EX)"},
    {0x82, "an extension (EXT1)"}, {0x83, "an extension (EXT2)"}, {0x84, "an extension (EXT4)"},
    {'P', "an external object (PERSID)"}, {'Q', "an external object (BINPERSID)"},
    {0x97, "a buffer from elsewhere (NEXT_BUFFER)"}, {0x98, "a buffer (READONLY_BUFFER)"},
    {0x96, "a bytearray (BYTEARRAY8)"}, {'B', "bytes (BINBYTES)"}, {'C', "bytes (SHORT_BINBYTES)"},
    {0x8e, "bytes (BINBYTES8)"}, {'T', "bytes (BINSTRING)"}, {'U', "bytes (SHORT_BINSTRING)"},
    {0x8f, "a set (EMPTY_SET)"}, {0x90, "a set (ADDITEMS)"}, {0x91, "a set (FROZENSET)"},
};
constexpr std::string_view kTextOpcodes = "IFLSVgp";  // INT FLOAT LONG STRING UNICODE GET PUT
constexpr size_t kMostName = 200;

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMostName));
  std::replace_if(result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
}

class PickleMachine {
 public:
  PickleMachine(ByteReader& in, Tables& tables, RowBuilder& builder, Watch& watch)
      : in_(in), heap_(tables.heap), strings_(tables.strings), builder_(builder), watch_(watch) {}

  Value run() {
    uint64_t position = 0;
    try {
      if (in_.at_end()) throw ReadError(ReadError::Kind::truncated, "the file is empty");
      for (bool is_first = true;; is_first = false) {
        tick();
        position = in_.position();
        const auto opcode = in_.little_endian<unsigned char>();
        const bool is_older = opcode == MARK || opcode == EMPTY_DICT || opcode == EMPTY_LIST;
        if (is_first && is_older) damaged("it may be of pickle protocol 0 or 1, which are not read");
        if (is_first && opcode != PROTO) throw ReadError(ReadError::Kind::not_a_pickle, "");
        if (!step(opcode)) break;
      }
      if (stack_.size() != 1 || !marks_.empty()) damaged("the pickle stops in the middle");
      check();
      return stack_[0];
    } catch (const ReadError& error) {
      throw ReadError(error.kind, std::string(error.what()) + " at byte " + std::to_string(position));
    }
  }

 private:
  static constexpr size_t kMostValues = 1 << 24;  // on the stack
  static constexpr size_t kMostMarks = 10'000;
  static constexpr uint64_t kSpareMemos = 1024;  // memo numbers that a pickler may skip
  static constexpr uint64_t kMostText = 1 << 24;  // bytes

  void tick() {
    if (++ticks_ % Watch::kInterval == 0) check();
  }
  bool step(unsigned char opcode) {
    switch (opcode) {
      case PROTO: {
        const auto protocol = in_.little_endian<uint8_t>();
        if (protocol < 2 || protocol > 5) damaged("pickle protocol " + std::to_string(protocol));
        break;
      }
      case FRAME: in_.little_endian<uint64_t>(); break;
      case STOP: return false;
      case MARK:
        if (marks_.size() == kMostMarks) damaged("lists and dicts are nested too deeply");
        marks_.push_back(stack_.size());
        break;
      case POP:
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          pop();
        }
        break;
      case POP_MARK: stack_.resize(pop_mark()); break;
      case DUP:
        if (top().is(Kind::object)) heap_.share(top());
        push(Value(top()));
        break;
      case NONE: push(Value()); break;
      case NEWTRUE: push(Value(Kind::boolean, 1)); break;
      case NEWFALSE: push(Value(Kind::boolean, 0)); break;
      case BININT: push(heap_.integer(in_.little_endian<int32_t>())); break;
      case BININT1: push(heap_.integer(in_.little_endian<uint8_t>())); break;
      case BININT2: push(heap_.integer(in_.little_endian<uint16_t>())); break;
      case LONG1: long_integer(in_.little_endian<uint8_t>()); break;
      case LONG4: long_integer(in_.little_endian<uint32_t>()); break;
      case BINFLOAT: {
        const uint64_t bits = __builtin_bswap64(in_.little_endian<uint64_t>());
        double number;
        std::memcpy(&number, &bits, sizeof(number));
        push(heap_.real(number));
        break;
      }
      case SHORT_BINUNICODE: text(in_.little_endian<uint8_t>()); break;
      case BINUNICODE: text(in_.little_endian<uint32_t>()); break;
      case BINUNICODE8: text(in_.little_endian<uint64_t>()); break;
      case EMPTY_LIST: push(heap_.make(Shape::list)); break;
      case EMPTY_TUPLE: push(heap_.make(Shape::tuple)); break;
      case EMPTY_DICT:
        // A dict is never a key. So a dict before a new dict is a complete item of a list and can be
        // adopted now: some picklers write all items of a list before one APPENDS.
        if (stack_.size() > (marks_.empty() ? 0 : marks_.back())) top() = builder_.adopt(top());
        push(heap_.make(Shape::dict));
        break;
      case LIST: collect(Shape::list, pop_mark()); break;
      case TUPLE: collect(Shape::tuple, pop_mark()); break;
      case DICT: collect(Shape::dict, pop_mark()); break;
      case TUPLE1:
      case TUPLE2:
      case TUPLE3: {
        const size_t count = opcode - TUPLE1 + 1;
        if (stack_.size() < count + (marks_.empty() ? 0 : marks_.back())) {
          damaged("a tuple of values that are not there");
        }
        collect(Shape::tuple, stack_.size() - count);
        break;
      }
      case APPEND: extend(Shape::list, stack_.size() - 1); break;
      case APPENDS: extend(Shape::list, pop_mark()); break;
      case SETITEM: extend(Shape::dict, stack_.size() - 2); break;
      case SETITEMS: extend(Shape::dict, pop_mark()); break;
      case MEMOIZE: remember(remembered_); break;
      case BINPUT: remember(in_.little_endian<uint8_t>()); break;
      case LONG_BINPUT: remember(in_.little_endian<uint32_t>()); break;
      case BINGET: recall(in_.little_endian<uint8_t>()); break;
      case LONG_BINGET: recall(in_.little_endian<uint32_t>()); break;
      default: refuse(opcode);
    }
    return true;
  }

  [[noreturn]] void refuse(unsigned char opcode) {
    std::string what;
    if (opcode == GLOBAL || opcode == INST) {
      const std::string module = in_.line(kMostName);
      what = printable(module) + "." + printable(in_.line(kMostName));
    } else if (opcode == STACK_GLOBAL) {
      const Value name = pop(), module = pop();
      if (!name.is(Kind::string) || !module.is(Kind::string)) damaged("a name that is no text");
      what = printable(strings_.at(module.index())) + "." + printable(strings_.at(name.index()));
    } else if (kTextOpcodes.find(static_cast<char>(opcode)) != std::string_view::npos) {
      damaged("it is of pickle protocol 0 or 1");
    }
    for (const Refused& refused : kRefused) {
      if (refused.opcode == opcode) what = refused.what;
    }
    if (what.empty()) damaged("no such opcode as " + std::to_string(opcode));
    throw ReadError(ReadError::Kind::refused, "it asks for " + what);
  }

  void check() {
    watch_.check_memory(
        memory_of(in_, heap_, strings_, builder_, stack_, marks_, memo_, is_remembered_));
    watch_.check_signals();
  }

  void push(Value value) {
    if (stack_.size() == kMostValues) damaged("more than 16,777,216 values outside of lists and dicts");
    stack_.push_back(value);
  }

  Value pop() {
    const Value value = top();
    stack_.pop_back();
    return value;
  }

  Value& top() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) damaged("a value is missing");
    return stack_.back();
  }

  // Returns the index of the first value above the mark.
  size_t pop_mark() {
    if (marks_.empty()) damaged("a list or dict ends that did not begin");
    const size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  // The same, to the list or dict below them.
  void extend(Shape shape, size_t first) {
    const size_t after_mark = marks_.empty() ? 0 : marks_.back();
    if (first > stack_.size() || first <= after_mark) damaged("a list or dict is missing");
    const Value found = stack_[first - 1];
    if (!found.is(Kind::object) || heap_.shape(found) != shape) {
      damaged(shape == Shape::list ? "an item is appended to a value that is no list"
                                   : "an item is set in a value that is no dict");
    }
    move(first, found);
  }

  // Moves the values from `first` on to an object.
  void move(size_t first, Value to) {
    if (heap_.shape(to) != Shape::dict) {
      for (size_t i = first; i < stack_.size(); ++i) {
        tick();
        stack_[i] = builder_.adopt(stack_[i]);
      }
    } else if ((stack_.size() - first) % 2 != 0) {
      damaged("a key without a value");
    }
    heap_.append(to, stack_.data() + first, stack_.size() - first);
    stack_.resize(first);
  }

  // The same, to a new object.
  void collect(Shape shape, size_t first) {
    const Value made = heap_.make(shape);
    if (first < stack_.size()) move(first, made);
    push(made);
  }

  // No recorder writes longer texts, and copying one would delay the check for signals.
  void text(uint64_t size) {
    if (size > kMostText) damaged("a text of " + std::to_string(size) + " bytes is too long");
    push(Value(Kind::string, strings_.intern(in_.text(size))));
  }

  // The bytes are little-endian two's complement; the last byte has the sign. No recorder writes more
  // than 64 bits, so more than 128 are None.
  void long_integer(uint64_t size) {
    if (size > kMostText) damaged("an integer of " + std::to_string(size) + " bytes");
    const std::string_view bytes = in_.text(size);
    if (size > 2 * sizeof(int64_t)) return push(Value());
    const bool is_negative = !bytes.empty() && static_cast<signed char>(bytes.back()) < 0;
    uint64_t parts[2];
    std::memset(parts, is_negative ? 0xff : 0, sizeof(parts));
    std::memcpy(parts, bytes.data(), bytes.size());
    const auto low = static_cast<int64_t>(parts[0]), high = static_cast<int64_t>(parts[1]);
    push(high == low >> 63 ? heap_.integer(low) : heap_.long_integer(high, parts[0]));
  }

  void remember(uint64_t memo) {
    if (memo > remembered_ + kSpareMemos) damaged("memo numbers are left out");
    const Value value = top();
    if (value.is(Kind::object)) heap_.share(value);
    while (memo_.size() <= memo) {
      memo_.push_back(Value());
      is_remembered_.push_back(false);
    }
    memo_[memo] = value;
    if (!is_remembered_[memo]) ++remembered_;
    is_remembered_[memo] = true;
  }

  void recall(uint64_t memo) {
    if (memo >= memo_.size() || !is_remembered_[memo]) damaged("what is referred to is not there");
    push(memo_[memo]);
  }

  ByteReader& in_;
  Heap& heap_;
  Strings& strings_;
  RowBuilder& builder_;
  Watch& watch_;
  uint64_t ticks_ = 0;
  Column<Value> stack_;
  Column<size_t> marks_;
  Column<Value> memo_;
  Column<bool> is_remembered_;  // by memo number
  uint64_t remembered_ = 0;
};

}  // namespace

Value read_pickle(ByteReader& in, Tables& tables, RowBuilder& builder, Watch& watch) {
  return PickleMachine(in, tables, builder, watch).run();
}

}  // namespace pytracer::reading
