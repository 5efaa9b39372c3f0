#include "python/encode.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "snapshot/memory_sink.h"
#include "snapshot/pickle_writer.h"

namespace py = pybind11;

namespace pytracer {

namespace {

void encode(PickleWriter& out, const py::handle& value) {
  if (value.is_none()) {
    out.none();
  } else if (py::isinstance<py::bool_>(value)) {
    out.boolean(value.cast<bool>());
  } else if (py::isinstance<py::int_>(value)) {
    const int64_t number = PyLong_AsLongLong(value.ptr());
    if (PyErr_Occurred()) {
      PyErr_Clear();
      throw py::type_error("a snapshot cannot hold an integer of more than 64 bits");
    }
    out.integer(number);
  } else if (py::isinstance<py::float_>(value)) {
    out.real(value.cast<double>());
  } else if (py::isinstance<py::str>(value)) {
    out.string(value.attr("encode")("utf-8", "surrogatepass").cast<std::string>());
  } else if (py::isinstance<py::dict>(value)) {
    out.dict();
    for (const auto& item : py::reinterpret_borrow<py::dict>(value)) {
      encode(out, item.first);
      encode(out, item.second);
    }
    out.set_items();
  } else if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    out.list();
    uint64_t items = 0;
    for (const auto& item : value) {
      out.next_item(items);
      encode(out, item);
    }
    out.append_items();
  } else {
    throw py::type_error("a snapshot cannot hold a value of type " +
                         py::type::of(value).attr("__name__").cast<std::string>());
  }
}

std::string encode_value(const py::handle& value) {
  MemorySink sink;
  PickleWriter out(sink);
  encode(out, value);
  out.flush();
  return std::move(sink.bytes);
}

std::string encode_items(const py::handle& dict) {
  std::string items;
  for (const auto& item : py::reinterpret_borrow<py::dict>(dict)) {
    items += encode_value(item.first) + encode_value(item.second);
  }
  return items;
}

}  // namespace

SnapshotExtras encode_extras(const py::dict& metadata, const py::dict& devices,
                             const py::dict& generated_code, const py::dict& file_names) {
  SnapshotExtras extras{encode_items(metadata)};
  for (const auto& item : devices) {
    extras.device_items[item.first.cast<int>()] = encode_items(item.second);
  }
  for (const auto& item : generated_code) {
    std::vector<SourceFrame>& sources =
        extras.generated_code[item.first.cast<std::pair<std::string, int64_t>>()];
    for (const auto& source : item.second) {
      auto [filename, name, line] = source.cast<std::tuple<std::string, std::string, int64_t>>();
      sources.push_back({std::move(filename), std::move(name), line});
    }
  }
  for (const auto& item : file_names) {
    extras.file_names[item.first.cast<std::string>()] = item.second.cast<std::string>();
  }
  return extras;
}

}  // namespace pytracer
