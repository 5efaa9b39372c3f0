// A file's texts, and the values that did not become rows (settings, annotations, the `pytracer`
// key), as Python objects.
//
// 1. Each text is one object, however many values refer to it.
// 2. A file's values may refer to each other many times and in circles. They become a tree of at
//    most as many values as the file has bytes.
// 3. Each object counts against the memory bound with the bytes that CPython takes for it.
// 4. A report in JSON repeats a text for each value that refers to it. The texts of all references
//    together have at most 50 times the file's bytes.
// 5. With the GIL. Throws ReadError.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string_view>

#include "reading/tables.h"
#include "reading/watch.h"

namespace pytracer::reading {

// UTF-8, which may have lone surrogates, as a Python string.
pybind11::str to_str(std::string_view utf8);

class PythonValues {
 public:
  PythonValues(const Tables& tables, uint64_t file_bytes, Watch& watch);

  pybind11::object make(Value value) { return make(value, 0); }

  pybind11::list strings;  // all texts, by number

 private:
  static constexpr int kMostDepth = 100;
  static constexpr uint64_t kSpareValues = 10'000;
  static constexpr uint64_t kTextTimes = 50, kSpareText = 1 << 20;
  // Bytes of an object in CPython 3.11 to 3.14, rounded up. kItem is a place in a list.
  static constexpr uint64_t kText = 80, kNumber = 32, kLong = 48, kList = 96, kItem = 10;
  static constexpr uint64_t kDict = 240, kItemsInDict = 5, kFurtherItem = 100;

  pybind11::object make(Value value, int depth);
  pybind11::object make_object(Value value, int depth);
  pybind11::object make_key(Value value);
  pybind11::object shared_text(uint32_t number);
  void count(uint64_t bytes);

  const Tables& tables_;
  Watch& watch_;
  uint64_t values_left_;
  uint64_t text_left_;
  uint64_t memory_;
  const pybind11::str row_text_{"<a row of the snapshot>"};  // stands for a value that became a row
};

}  // namespace pytracer::reading
