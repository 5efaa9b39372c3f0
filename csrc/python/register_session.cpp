#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/python/gil.h"
#include "python/registers.h"
#include "restore/restored_view.h"
#include "session/session.h"

namespace pytracer {

namespace {

struct OutsideGilDeleter {
  void operator()(Session* session) const {
    if (session->is_ours()) outside_gil([&] { delete session; });  // else leaked: contract 7
  }
};

// A row of Session.events(). Tracer.events() documents the fields.
struct EventRecord {
  uint64_t sequence;
  int64_t time_ns;
  uint64_t address, size_bytes, stream;
  uint32_t stack, alloc_stack;
  uint64_t pool_high, pool_low;
  uint32_t step;
  uint16_t phase;
  uint8_t action;
  int8_t device;
};

// What an array of events is a view of. Python has the stacks as plain numbers, so they are kept.
struct Rows {
  std::vector<EventRecord> rows;
  StackTable::Generations stacks;
};

py::array_t<EventRecord> events_of(Session& session) {
  auto owned = std::make_unique<Rows>();
  std::vector<EventRecord>& rows = owned->rows;
  {
    OutsideGil outside;
    const View view = session.events();
    StackReader stacks(view.stacks);
    const auto own = [&](uint32_t stack) { return stack != 0 ? stacks.of(stack).backward(stack).own : 0; };
    for (const DeviceView& device : view.devices) {
      const std::vector<Event> events = copy_events(device);
      uint64_t sequence = device.capture.end - events.size();
      auto next_step = device.steps.begin();
      uint32_t step = 0;
      for (const Event& event : events) {
        while (next_step != device.steps.end() && next_step->begin <= sequence) {
          step = next_step++->number;
        }
        const Pool pool = device.capture.names->pool(event.pool);
        EventRecord row{sequence++, WallClock::to_wall_ns(*device.clock, event.ticks),
                        event.address, event.size(), event.stream, own(visible_stack(event, view.context)),
                        view.context < Context::alloc ? 0 : own(event.alloc_stack), pool.high,
                        pool.low, step, event.phase, event.action, event.device};
        for (const uint8_t action : entry_actions(event, false)) {
          row.action = action;
          rows.push_back(row);
        }
      }
    }
    if (view.devices.size() > 1) {
      std::stable_sort(rows.begin(), rows.end(), [](const EventRecord& a, const EventRecord& b) {
        return a.time_ns < b.time_ns;
      });
    }
    if (view.stacks) owned->stacks = session.keep_returned();
  }
  const py::capsule owner(owned.get(), [](void* done) { delete static_cast<Rows*>(done); });
  owned.release();
  return py::array_t<EventRecord>(static_cast<py::ssize_t>(rows.size()), rows.data(), owner);
}

// Returns the frames of a stack: [(filename, name, line), ...], innermost first.
py::list frames_of(Session& session, int64_t stack) {
  py::list frames;
  if (stack == 0) return frames;
  const auto id = static_cast<uint32_t>(stack);
  const std::shared_ptr<StackTable> table = outside_gil([&] { return session.stacks(); });
  const uint32_t depth = outside_gil([&] { return session.options().stack_depth; });
  const auto tree = table && stack == id ? table->generation_of(id) : nullptr;
  if (!tree || !tree->is_used(id)) {
    throw py::index_error("this tracer has no stack " + std::to_string(stack) +
                          "; events() has the stacks that frames() knows, and 0 stands for none");
  }
  const auto text = [&](uint32_t name) { return to_str(tree->text(name)); };
  for (const uint32_t number : tree->frames(id, depth).innermost_first) {
    const CallTree::Frame& frame = tree->frame(number);
    frames.append(py::make_tuple(text(tree->filename(frame)), text(tree->name(frame)), frame.line));
  }
  return frames;
}

py::dict stats_of(Session& session) {
  using namespace py::literals;
  const Session::Stats stats = outside_gil([&] { return session.stats(); });
  py::list devices;
  for (const Session::DeviceStats& device : stats.devices) {
    devices.append(py::dict("device"_a = device.device, "recorded"_a = device.recorded, "held"_a = device.held,
        "overwritten"_a = device.overwritten, "unknown_frees"_a = device.counts.unknown_frees,
        "ring_bytes"_a = device.ring_bytes, "max_ring_bytes"_a = device.max_ring_bytes,
        "live_blocks"_a = device.live_blocks, "live_block_bytes"_a = device.live_block_bytes,
        "live_dropped"_a = device.counts.live_dropped,
        "labels_dropped"_a = device.counts.labels_dropped, "live_table_bytes"_a = device.live_table_bytes,
        "max_live_table_bytes"_a = device.max_live_table_bytes));
  }
  const StackTable::Stats& stacks = stats.stacks;
  return py::dict("devices"_a = devices, "stacks"_a = py::dict("stacks"_a = stacks.stacks, "frames"_a = stacks.frames,
                                        "codes"_a = stacks.codes, "truncated"_a = stacks.truncated,
                                        "dropped"_a = stacks.dropped, "bytes"_a = stacks.bytes,
                                        "max_bytes"_a = stacks.max_bytes));
}

}  // namespace

void register_session(py::module_& core) {
  PYBIND11_NUMPY_DTYPE(EventRecord, sequence, time_ns, address, size_bytes, stream,
                       stack, alloc_stack, pool_high, pool_low, step, phase, action, device);
  py::class_<Session, std::unique_ptr<Session, OutsideGilDeleter>>(core, "Session")
      .def(py::init([](std::vector<int> devices, uint32_t max_entries, uint32_t stack_depth,
                       uint64_t max_stack_bytes, uint8_t context, bool forward_stacks) {
             return std::unique_ptr<Session, OutsideGilDeleter>(
                 new Session(SessionOptions{std::move(devices), max_entries, stack_depth,
                                            max_stack_bytes, static_cast<Context>(context), forward_stacks}));
           }), py::arg("devices"), py::arg("max_entries"), py::arg("stack_depth"),
           py::arg("max_stack_bytes"), py::arg("context"), py::arg("forward_stacks") = false)
      .def("start", &Session::start, py::arg("history") = true, py::arg("keeps_events") = false,
           py::call_guard<OutsideGil>())
      .def("stack_of", &Session::stack_of, py::arg("address"), py::call_guard<OutsideGil>())
      .def("pause", &Session::pause, py::call_guard<OutsideGil>())
      .def("change", [](Session& session, uint32_t max_entries, uint32_t stack_depth, uint8_t context) {
        session.change(max_entries, stack_depth, static_cast<Context>(context));
      }, py::arg("max_entries"), py::arg("stack_depth"), py::arg("context"), py::call_guard<OutsideGil>())
      .def("stop", &Session::stop, py::call_guard<OutsideGil>())
      .def("mark", &Session::mark, py::call_guard<OutsideGil>())
      .def("clear", &Session::clear, py::call_guard<OutsideGil>())
      .def("view", [](Session& session, bool history, uint16_t phase, std::shared_ptr<Owners> owners) {
        View view = outside_gil([&] { return session.view(history, phase); });
        view.owners = std::move(owners);
        return view;
      }, py::arg("history") = true, py::arg("phase") = 0, py::arg("owners") = nullptr)
      .def("end_window", [](Session& session, bool history, uint32_t step, std::shared_ptr<Owners> owners) {
        View view = outside_gil([&] { return session.end_window(history, step); });
        view.owners = std::move(owners);
        return view;
      }, py::arg("history"), py::arg("step"), py::arg("owners") = nullptr)
      .def("begin_step", &Session::begin_step, py::arg("number"), py::arg("replaces") = false,
           py::call_guard<OutsideGil>())
      .def("events", &events_of)
      .def("frames", &frames_of, py::arg("stack"))
      .def("stats", &stats_of)
      .def_property_readonly("recording", &Session::recording)
      .def_property_readonly("is_ours", &Session::is_ours);
  core.def("open_box", [](int file) { outside_gil([&] { Registry::instance().open_box(file); }); }, py::arg("file"));
  core.def("describe_box",
      [](const std::string& text) { outside_gil([&] { Registry::instance().describe_box(text); }); });
  core.def("box_was_lost", &Box::was_lost);
  core.attr("MAX_DESCRIPTION") = BoxNotes::kMaxDescription;
  py::class_<BoxReader>(core, "Box")
      .def(py::init<int>(), py::arg("file"))
      .def_property_readonly("description", [](const BoxReader& box) { return py::bytes(description_of(box)); })
      .def_property_readonly("is_cut", &BoxReader::is_cut)
      .def_property_readonly("last_step", &last_step)
      .def_property_readonly("devices", [](const BoxReader& box) {
        using namespace py::literals;
        py::list devices;
        for (const DeviceNow& now : devices_now(box)) {
          devices.append(py::dict("device"_a = now.device, "recorded"_a = now.recorded,
                                  "allocated_bytes"_a = now.allocated_bytes, "peak_bytes"_a = now.peak_bytes,
                                  "reserved_bytes"_a = now.reserved_bytes));
        }
        return devices;
      })
      .def("view", [](const BoxReader& box, uint32_t depth, uint8_t context, bool forward_stacks, bool is_same_boot) {
        return outside_gil(
            [&] { return restored_view(box, {depth, static_cast<Context>(context), forward_stacks, is_same_boot}); });
      }, py::arg("stack_depth"), py::arg("context"), py::arg("forward_stacks"), py::arg("is_same_boot"));
}

}  // namespace pytracer
