// Runs those opcodes of a pickle that make lists, tuples, dicts, numbers and texts.
//
// 1. Nothing of the file is executed: an opcode that imports or calls is a ReadError that names it.
// 2. Each item of a list or tuple passes through RowBuilder::adopt(), which may replace it by a smaller
//    value, so that the dicts of a file are never all in memory.
// 3. Memory grows with the bytes that were read: lengths and indices that the file states are not
//    trusted, and nesting and the stack have bounds. The Watch checks signals and all memory every
//    1,024 opcodes or adopted items.
// 4. Protocols 2 to 5. Earlier protocols are text, which no recorder writes.
// 5. One thread. Throws ReadError, with the position in bytes.
#pragma once

#include "row_builder.h"

namespace pytracer::reading {

Value read_pickle(ByteReader& in, Tables& tables, RowBuilder& builder, Watch& watch);

}  // namespace pytracer::reading
