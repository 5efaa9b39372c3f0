#include <pybind11/pybind11.h>

#include <string>

#include "frames/code_objects.h"
#include "frames/frame_walk.h"
#include "support/python/gil.h"
#include "python/registers.h"
#include "record/recorder.h"

namespace py = pybind11;

namespace pytracer {

void register_walking(py::module_& core) {
  core.def("frame_walk_problem", [] {
    const std::string problem = frame_walk_problem();
    return problem.empty() ? py::object(py::none()) : py::object(py::str(problem));
  });
  core.def(
      "enable_stacks",
      [] {
        // Before the first walk, so that no destruction of a recorded code object is missed.
        watch_code(&Recorder::code_destroyed);
        Recorder::instance().set_walking(true);
      },
      "Records stacks from now on. Only where frame_walk_problem() is None.");
  core.def(
      "prepare_for_exit",
      [] {
        GilScopes::close();
        py::gil_scoped_release release;
        Recorder::instance().stop_walking();
      },
      "Waits for calls that are outside the GIL, then ends all walks. Has to be called before thread "
      "states are freed.");
}

}  // namespace pytracer
