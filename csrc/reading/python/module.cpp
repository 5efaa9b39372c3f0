#include "register.h"

PYBIND11_MODULE(_reader, m) {
  m.doc() = "Reads snapshots into columns. See _reader.pyi.";
  pytracer::reading::register_read(m);
  pytracer::reading::register_replay(m);
  pytracer::reading::register_simulate(m);
}
