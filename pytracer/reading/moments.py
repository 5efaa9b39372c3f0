"""How full a device was: at one moment, and as series over a trace."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.history import History, Levels
from pytracer.reading.periods import Marks, step_at
from pytracer.reading.snapshot import ALLOCATED, INACTIVE, NO_TIME, Column, Snapshot, Trace


@dataclass(frozen=True)
class Moment:
    """How full a device was at one moment.

    Attributes:
        event: The event that it follows; None: it is before the first.
        time_us, step, phase: Of that event; None: not known. The phase "" is none.
        is_exact: False: of some blocks only the requested bytes are known, so that all but
            `requested_bytes`, `reserved_bytes` and `segments` are bounds: those of free memory
            upper ones, the others lower ones. In a file of one phase, where what others did
            meanwhile is missing, nothing here is exact, and nothing a bound.
        requested_bytes: What the program asked for, of the active blocks.
        allocated_bytes: Of the blocks that the program had, as the allocator rounded them.
        active_bytes: Of these and the blocks whose free waited for a stream.
        reserved_bytes: Of the segments.
        fragmentation_bytes: Reserved, not allocated.
        rounding_bytes: Active, not requested: what rounding took.
        inactive_split_bytes: Of free blocks in segments that were in use.
        largest_free_bytes: Of the largest free block.
        free_concentration: The sum of the squares of free blocks' bytes, divided by the square of
            their sum: 1 is one block, near 0 many small ones. None: nothing was free, or it is
            not exact.
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
    """How the levels of a device changed, at chosen moments: lists of equal length.

    Where `events` is less than the device's `lost.exact_from` levels are as in a `Moment` that is
    not exact.

    Attributes:
        events: How many events had passed: 0 is before the first.
        times_us: When that was; None: not known, as before the first event.
        requested_bytes, allocated_bytes, active_bytes, reserved_bytes, fragmentation_bytes,
            inactive_split_bytes, largest_free_bytes, free_concentration, segments: As in a
            `Moment`.
    """

    events: list[int]
    times_us: list[int | None]
    requested_bytes: list[int]
    allocated_bytes: list[int]
    active_bytes: list[int]
    reserved_bytes: list[int]
    fragmentation_bytes: list[int]
    inactive_split_bytes: list[int]
    largest_free_bytes: list[int]
    free_concentration: list[float | None]
    segments: list[int]


_LEVELS = tuple(field.name for field in fields(Series))[2:]

LEAST_POINTS = 4
"""Of a series: the first and the last moment, and when most was allocated and reserved."""


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
        free_concentration=float(free_squares) / free**2 if is_exact and free > 0 else None,
        segments=int(segments),
    )


def series(trace: Trace, history: History, points: int) -> Series:
    """All levels at the same moments, so many at most.

    These are the first, the last, and of equal numbers of events those at which any of the levels
    is highest or lowest.

    Raises:
        PytracerError: There are less than `LEAST_POINTS`.
    """
    if points < LEAST_POINTS:
        raise PytracerError(f"points={points}: a series has at least {LEAST_POINTS}")
    levels = history.levels
    entries = _chosen(levels, points)
    chosen = entries.tolist()
    values = {name: _values(levels, name, entries).tolist() for name in _LEVELS}
    values["free_concentration"] = [
        value if value and entry >= history.exact_from else None
        for entry, value in zip(chosen, values["free_concentration"], strict=True)
    ]
    times = [None if entry == 0 else time_of(trace, entry - 1) for entry in chosen]
    return Series(chosen, times, **values)


def _values(levels: Levels, name: str, entries: Column | slice) -> Column:
    """A level at some entries; 0 is no concentration, since nothing was free."""
    if name == "fragmentation_bytes":
        return levels.reserved_bytes[entries] - levels.allocated_bytes[entries]
    if name == "free_concentration":
        free = (levels.reserved_bytes[entries] - levels.active_bytes[entries]).astype(np.float64)
        squares = levels.free_squares[entries]
        return np.divide(squares, free**2, out=np.zeros(len(free)), where=free > 0)
    column: Column = getattr(levels, name)[entries]
    return column


def _chosen(levels: Levels, points: int) -> Column:
    """The entries of a series. Level by level in stretches, so that nothing large is made."""
    entries = len(levels.allocated_bytes)
    if entries <= points:
        return np.arange(entries)
    most = (levels.allocated_bytes.argmax(), levels.reserved_bytes.argmax())
    always = np.unique([0, entries - 1, *most])
    width = -(-entries // max((points - LEAST_POINTS) // 2, 1))
    found = []  # of each level, of the lowest and the highest in each stretch: where, and a rank
    for name in _LEVELS:
        low, high = [], []
        for begin in range(0, entries, width):
            values = _values(levels, name, slice(begin, begin + width))
            lowest, highest = int(values.argmin()), int(values.argmax())
            low.append((begin + lowest, values[lowest]))
            high.append((begin + highest, -values[highest]))
        if min(low, key=_rank)[1] != -min(high, key=_rank)[1]:  # else it never changed
            found += [low, high]
    while True:
        chosen = np.union1d(always, [entry for each in found for entry, _ in each]).astype(np.int64)
        if len(chosen) <= points:
            return chosen
        if len(found[0]) == 1:
            return always
        # Stretches twice as long, out of what is known of these.
        found = [
            [min(each[i : i + 2], key=_rank) for i in range(0, len(each), 2)] for each in found
        ]


def _rank(extreme: tuple[int, Any]) -> Any:
    return extreme[1]
