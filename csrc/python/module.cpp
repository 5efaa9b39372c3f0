// The extension module pytracer._core. The files of this folder are the only ones of the core that
// know pybind11.
#include <pybind11/pybind11.h>

#include "support/python/gil.h"
#include "python/registers.h"
#include "session/registry.h"

PYBIND11_MODULE(_core, core) {
  using namespace pytracer;
  core.doc() = "pytracer's recorder. See _core.pyi.";
  GilScopes::watch_forks();
  Registry::instance();  // made now, so that no fork comes in the middle of its construction
  core.attr("CPU_DEVICE") = PYTRACER_CPU_DEVICE;
  core.attr("HOST_DEVICE") = PYTRACER_HOST_DEVICE;
  core.attr("MAX_STACK_DEPTH") = kMaxStackDepth;
  register_errors();
  register_objects(core);
  register_tensors(core);
  register_owners(core);
  register_view(core);
  register_boxes(core);
  register_session(core);
  register_phases(core);
  register_hooks(core);
  register_signals(core);
  register_walking(core);
  register_testing(core);
}
