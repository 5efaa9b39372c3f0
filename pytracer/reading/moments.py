"""How full a device was: at one moment, and as series over a trace."""

from dataclasses import dataclass

import numpy as np

from pytracer.reading.history import History
from pytracer.reading.periods import Marks, step_at
from pytracer.reading.snapshot import ALLOCATED, INACTIVE, NO_TIME, Column, Snapshot, Trace


@dataclass(frozen=True)
class Moment:
    """How full a device was at one moment.

    Attributes:
        event: The event that it follows; None: it is before the first.
        time_us, step, phase: Of that event; None: not known. The phase "" is none.
        is_exact: False: of some blocks only the requested bytes are known, so that all but
            `requested_bytes` and `reserved_bytes` are bounds: those of free memory upper ones, the
            others lower ones.
        requested_bytes: What the program asked for, of the active blocks.
        allocated_bytes: Of the blocks that the program had, as the allocator rounded them.
        active_bytes: Of these and the blocks whose free waited for a stream.
        reserved_bytes: Of the segments.
        fragmentation_bytes: Reserved, not allocated.
        rounding_bytes: Active, not requested: what rounding took.
        inactive_split_bytes: Of free blocks in segments that were in use.
        largest_free_bytes: Of the largest free block.
        free_concentration: The sum of the squares of free blocks' bytes, divided by the square of
            their sum: 1 is one block, near 0 many small ones. None: nothing was free.
        segments: How many there were, without those that expand.
    """

    event: int | None
    time_us: int | None
    step: int | None
    phase: str | None
    is_exact: bool
    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    fragmentation_bytes: int
    rounding_bytes: int
    inactive_split_bytes: int
    largest_free_bytes: int
    free_concentration: float | None
    segments: int

    @property
    def free_bytes(self) -> int:
        """Of all free blocks together."""
        return self.reserved_bytes - self.active_bytes


@dataclass(frozen=True)
class Series:
    """How a level changed, at chosen moments: highs and lows are among them.

    Attributes:
        events: How many events had passed.
        times_us: When that was; None: not known, as before the first event.
        level_bytes: The level.
    """

    events: list[int]
    times_us: list[int | None]
    level_bytes: list[int]


SERIES = (
    "requested_bytes",
    "allocated_bytes",
    "active_bytes",
    "reserved_bytes",
    "inactive_split_bytes",
    "largest_free_bytes",
)
"""The levels that there are series of."""


def time_of(trace: Trace, event: int) -> int | None:
    """When an event happened; None: the file does not tell."""
    time_us = int(trace.time_us[event])
    return None if time_us == NO_TIME else time_us


def moment_at(
    snapshot: Snapshot, device: int, history: History, level: int, marks: Marks
) -> Moment:
    """A device at an entry of its history's levels; `marks` are its steps'."""
    levels = history.levels
    return _moment(
        snapshot,
        device,
        level - 1,
        marks,
        is_exact=level >= history.exact_from,
        requested_bytes=levels.requested_bytes[level],
        allocated_bytes=levels.allocated_bytes[level],
        active_bytes=levels.active_bytes[level],
        reserved_bytes=levels.reserved_bytes[level],
        inactive_split_bytes=levels.inactive_split_bytes[level],
        largest_free_bytes=levels.largest_free_bytes[level],
        free_squares=levels.free_squares[level],
        segments=levels.segments[level],
    )


def final_moment(snapshot: Snapshot, device: int, marks: Marks) -> Moment:
    """A device when the snapshot was taken, as its segments and blocks tell without the trace."""
    segments, blocks = snapshot.segments, snapshot.blocks
    of_device = segments.device == device
    here = of_device[blocks.segment]
    size, state = blocks.size_bytes[here], blocks.state[here]
    is_free = state == INACTIVE
    free = size[is_free]
    # A free block is split if it has not its segment for itself.
    blocks_of = np.diff(np.append(segments.first_block, len(blocks)))
    may_split = (blocks_of > 1) & ~segments.is_expandable
    return _moment(
        snapshot,
        device,
        len(snapshot.traces[device]) - 1 if 0 <= device < len(snapshot.traces) else -1,
        marks,
        is_exact=True,
        requested_bytes=blocks.requested_bytes[here][~is_free].sum(),
        allocated_bytes=size[state == ALLOCATED].sum(),
        active_bytes=size[~is_free].sum(),
        reserved_bytes=segments.size_bytes[of_device].sum(),
        inactive_split_bytes=free[may_split[blocks.segment[here][is_free]]].sum(),
        largest_free_bytes=free.max(initial=0),
        free_squares=np.square(free, dtype=np.float64).sum(),
        segments=int(np.count_nonzero(of_device & ~segments.is_expandable)),
    )


def _moment(
    snapshot: Snapshot,
    device: int,
    event: int,
    marks: Marks,
    *,
    is_exact: bool,
    requested_bytes: int,
    allocated_bytes: int,
    active_bytes: int,
    reserved_bytes: int,
    inactive_split_bytes: int,
    largest_free_bytes: int,
    free_squares: float,
    segments: int,
) -> Moment:
    trace = snapshot.traces[device] if event >= 0 else None
    free = int(reserved_bytes) - int(active_bytes)
    return Moment(
        event=None if trace is None else event,
        time_us=None if trace is None else time_of(trace, event),
        step=None if trace is None else step_at(marks, event),
        phase=None if trace is None else snapshot.strings[trace.user_metadata[event]],
        is_exact=is_exact,
        requested_bytes=int(requested_bytes),
        allocated_bytes=int(allocated_bytes),
        active_bytes=int(active_bytes),
        reserved_bytes=int(reserved_bytes),
        fragmentation_bytes=int(reserved_bytes) - int(allocated_bytes),
        rounding_bytes=int(active_bytes) - int(requested_bytes),
        inactive_split_bytes=int(inactive_split_bytes),
        largest_free_bytes=int(largest_free_bytes),
        free_concentration=float(free_squares) / free**2 if free > 0 else None,
        segments=int(segments),
    )


def series(trace: Trace, history: History, points: int) -> dict[str, Series]:
    """The levels named in `SERIES`, each at no more than so many moments.

    These are the first, the last, and the highest and the lowest of equal numbers of events.
    """
    return {name: _series(trace, getattr(history.levels, name), points) for name in SERIES}


def _series(trace: Trace, level: Column, points: int) -> Series:
    if len(level) <= points:
        chosen = np.arange(len(level))
    elif level.strides == (0,):  # it never changed
        chosen = np.array([0, len(level) - 1])
    else:
        width = -(-len(level) // (points // 2 - 1))
        whole = len(level) // width * width
        rows = level[:whole].reshape(-1, width)
        begins = np.arange(0, whole, width)
        parts = [begins + rows.argmin(1), begins + rows.argmax(1), [0, len(level) - 1]]
        if rest := len(level) - whole:
            parts.append(whole + np.array([level[-rest:].argmin(), level[-rest:].argmax()]))
        chosen = np.unique(np.concatenate(parts))
    times = [None if i == 0 else time_of(trace, i - 1) for i in chosen.tolist()]
    return Series(chosen.tolist(), times, level[chosen].tolist())
