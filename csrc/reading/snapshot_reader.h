// Reads a snapshot file into Tables.
#pragma once

#include "byte_reader.h"
#include "tables.h"
#include "watch.h"

namespace pytracer::reading {

// Fills `tables`, which are empty. Throws ReadError if the file is no snapshot or is damaged.
void read_snapshot(ByteReader& in, Tables& tables, Watch& watch);

}  // namespace pytracer::reading
