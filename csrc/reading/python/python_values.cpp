#include "python_values.h"

#include "reading/read_error.h"

namespace py = pybind11;

namespace pytracer::reading {

py::str to_str(std::string_view utf8) {
  PyObject* text = PyUnicode_DecodeUTF8(utf8.data(), static_cast<py::ssize_t>(utf8.size()),
                                        "surrogatepass");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

PythonValues::PythonValues(const Tables& tables, uint64_t file_bytes, Watch& watch)
    : tables_(tables),
      watch_(watch),
      values_left_(file_bytes + kSpareValues),
      text_left_(kTextTimes * file_bytes + kSpareText),
      memory_(memory_of(tables.heap, tables.strings, tables)) {
  for (uint32_t i = 0; i < tables.strings.size(); ++i) {
    const py::str text = to_str(tables.strings.at(i));
    count(kText + static_cast<uint64_t>(PyUnicode_GET_LENGTH(text.ptr())) *
                      static_cast<uint64_t>(PyUnicode_KIND(text.ptr())));
    strings.append(text);
  }
}

py::object PythonValues::make(Value value, int depth) {
  if (values_left_-- == 0) damaged("values refer to each other too often");
  const Heap& heap = tables_.heap;
  switch (value.kind()) {
    case Kind::none: return py::none();
    case Kind::boolean: return py::bool_(value.number() != 0);
    case Kind::integer: return count(kNumber), py::int_(value.number());
    case Kind::wide_integer: return count(kLong), py::int_(heap.wide_integer(value));
    case Kind::long_integer:
      count(kLong);
      return (py::int_(heap.high_part(value)) << py::int_(64)) | py::int_(heap.low_part(value));
    case Kind::real: return count(kNumber), py::float_(heap.real(value));
    case Kind::string: return shared_text(value.index());
    case Kind::object:
      if (!heap.is_resolved(value)) return make_object(value, depth);
      [[fallthrough]];
    default: return row_text_;
  }
}

py::object PythonValues::make_object(Value value, int depth) {
  if (depth == kMostDepth) damaged("values are nested too deeply");
  const Heap::Items& items = tables_.heap.items(value);
  if (tables_.heap.shape(value) == Shape::dict) {
    py::dict dict;
    count(kDict);
    for (size_t i = 0; i < items.size(); i += 2) {
      dict[make_key(items[i])] = make(items[i + 1], depth + 1);
      if (i / 2 >= kItemsInDict) count(kFurtherItem);
    }
    return dict;
  }
  py::list list;
  count(kList);
  for (const Value item : items) {
    list.append(make(item, depth + 1));
    count(kItem);
  }
  return tables_.heap.shape(value) == Shape::list ? py::object(list) : py::tuple(list);
}

// Only values of which few have one hash: many would make the dict slow. The hashes of integers are
// their remainders of 2^61 - 1.
py::object PythonValues::make_key(Value value) {
  switch (value.kind()) {
    case Kind::none:
    case Kind::boolean:
    case Kind::integer:
    case Kind::wide_integer:
    case Kind::string: return make(value);
    default: damaged("a dict has a key that is no text and no number");
  }
}

py::object PythonValues::shared_text(uint32_t number) {
  const uint64_t bytes = tables_.strings.at(number).size();
  if (bytes > text_left_) damaged("values refer to long texts too often");
  text_left_ -= bytes;
  return strings[number];
}

void PythonValues::count(uint64_t bytes) {
  memory_ += bytes;
  watch_.check_memory(memory_);
  watch_.tick();
}

}  // namespace pytracer::reading
