#include "register.h"
#include "support/python/gil.h"

PYBIND11_MODULE(_reader, m) {
  m.doc() = "Reads snapshots into columns. See _reader.pyi.";
  pytracer::GilScopes::watch_forks();
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function(&pytracer::GilScopes::close));
  pytracer::reading::register_read(m);
  pytracer::reading::register_replay(m);
  pytracer::reading::register_simulate(m);
}
