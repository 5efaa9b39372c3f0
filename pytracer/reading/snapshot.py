"""A memory snapshot as columns: what `load` makes of a file, and all analysis stands on.

Stacks, frames, strings and memory pools are kept once each; columns refer to them by index, and
index 0 is what is not there: no stack, "", the default pool. Bytes are `_bytes`, times microseconds
since the Unix epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytracer.actions import ACTIONS

Column = NDArray[Any]

(
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SNAPSHOT,
    OOM,
    WORKSPACE_SNAPSHOT,
    ANNOTATE,
) = range(len(ACTIONS))

INACTIVE, PENDING_FREE, ALLOCATED = range(3)
"""A block's states: free; freed by the program, but still used on a stream; allocated."""

NO_TIME = -1
"""In `Trace.time_us`: the file does not tell when (torch_npu's, and torch's before 2.2)."""


class Frame(NamedTuple):
    """One frame of a call stack."""

    filename: str
    name: str
    line: int


def lean(column: Column) -> Column:
    """The column, without memory if it says the same all along, as streams and pools often do."""
    if len(column) == 0 or np.any(column != column[0]):
        return column
    return np.broadcast_to(column[0], column.shape)


@dataclass(frozen=True, eq=False)
class Stacks:
    """All distinct call stacks, innermost frame first; stack 0 is empty.

    Attributes:
        offsets: int64, one more than there are stacks: where each stack begins in `frame`.
        frame: uint32, the stacks' frames, one after the other.
        filename, name: uint32, of each distinct frame, an index in `strings`.
        line: int64, of each distinct frame.
        strings: The snapshot's strings.
    """

    offsets: Column
    frame: Column
    filename: Column
    name: Column
    line: Column
    strings: Sequence[str]

    def __len__(self) -> int:
        """How many there are, the empty one included."""
        return len(self.offsets) - 1

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first."""
        begin, end = self.offsets[stack], self.offsets[stack + 1]
        return tuple(
            Frame(self.strings[self.filename[i]], self.strings[self.name[i]], int(self.line[i]))
            for i in self.frame[begin:end]
        )


@dataclass(frozen=True, eq=False)
class Trace:
    """The events of one device, oldest first; columns of equal length.

    Attributes:
        action: uint8, an index in the snapshot's `actions`.
        address: int64; of `oom`, the free bytes that the device reported.
        size_bytes: int64; of `alloc` and both frees, what the program asked for.
        stream: int64.
        time_us: int64; `NO_TIME` where the file does not tell.
        stack: uint32, an index in the snapshot's `stacks`.
        pool: uint32, an index in the snapshot's `pools`.
        compile_context, user_metadata: uint32, indices in the snapshot's `strings`. In pytracer's
            files `user_metadata` is the phase of the event.
    """

    action: Column
    address: Column
    size_bytes: Column
    stream: Column
    time_us: Column
    stack: Column
    pool: Column
    compile_context: Column
    user_metadata: Column

    def __len__(self) -> int:
        """How many events there are."""
        return len(self.action)


@dataclass(frozen=True, eq=False)
class Segments:
    """What the allocators held of their devices in the end; columns of equal length.

    Attributes:
        device: int64, the index of the device's trace.
        address, size_bytes, stream: int64.
        kind: uint32, "small" or "large": an index in the snapshot's `strings`.
        pool: uint32, an index in the snapshot's `pools`.
        is_expandable: bool.
        stack: uint32.
        first_block: int64, where its blocks begin in the snapshot's `blocks`; they end where the
            next segment's begin.
    """

    device: Column
    address: Column
    size_bytes: Column
    stream: Column
    kind: Column
    pool: Column
    is_expandable: Column
    stack: Column
    first_block: Column

    def __len__(self) -> int:
        """How many there are."""
        return len(self.device)


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of all segments, in their order; columns of equal length.

    Attributes:
        segment: int64, an index in the snapshot's `segments`.
        address, size_bytes: int64.
        requested_bytes: int64, what the program asked for; `size_bytes` where the file does not
            tell.
        state: uint8: `INACTIVE`, `PENDING_FREE` or `ALLOCATED`.
        stack: uint32.
    """

    segment: Column
    address: Column
    size_bytes: Column
    requested_bytes: Column
    state: Column
    stack: Column

    def __len__(self) -> int:
        """How many there are."""
        return len(self.segment)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What a file holds.

    Attributes:
        path: The file's name, for messages.
        traces: By device index. pytracer's files have the CPU after the accelerators.
        segments, blocks: Of all devices.
        stacks: Of events, segments and blocks.
        strings: What columns refer to; "" is the first.
        pools: int64 of shape (pools, 2); (0, 0), the default one, is the first.
        actions: The names of the values in `Trace.action`: `pytracer.ACTIONS`, then what the file
            has beside.
        allocator_settings: As torch writes them; {} if the file has none.
        external_annotations: As torch writes them: dicts of name, stage, device and time_us.
        about: What pytracer tells of its files (docs/design.md has the keys); {} in others'.
        unknown_keys: What was left out since nothing is known of it, as "event.key", sorted.
    """

    path: str
    traces: tuple[Trace, ...]
    segments: Segments
    blocks: Blocks
    stacks: Stacks
    strings: Sequence[str]
    pools: Column
    actions: tuple[str, ...]
    allocator_settings: dict[str, Any]
    external_annotations: list[dict[str, Any]]
    about: dict[str, Any]
    unknown_keys: tuple[str, ...]

    def has_times(self, device: int) -> bool:
        """Whether the file tells when the device's events happened."""
        return bool(np.any(self.traces[device].time_us != NO_TIME))
