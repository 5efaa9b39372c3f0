"""The usage of a device's memory at one moment."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.history import History, Usage
from pytracer.reading.snapshot import ALLOCATED, INACTIVE, NO_TIME, TAKES_MEMORY, Column, Trace
from pytracer.reading.steps import step_at


def is_observable(trace: Trace) -> Column:
    """Return for each entry of a trace's usage whether another thread could observe it.

    The allocator holds its lock between a new segment and the block that the segment is for.

    Returns:
        bool, of shape `(events + 1,)`; entry 0 is before the first event.
    """
    return np.append(True, ~np.isin(trace.action, TAKES_MEMORY))


def unallocated_after(history: History, event: int) -> int | None:
    """Return reserved - allocated bytes after an event, or None if that is not known exactly.

    The memory is cached for the next request, or too fragmented for it.
    """
    if event + 1 < history.exact_from:
        return None
    usage = history.usage
    return int(usage.reserved_bytes[event + 1] - usage.allocated_bytes[event + 1])


def peak_unallocated(history: History, trace: Trace) -> int | None:
    """Return the largest reserved - allocated bytes at one event, or None if none is exact.

    Entries that no other thread could observe do not count.
    """
    counts = is_observable(trace)
    counts[: history.exact_from] = False
    unallocated = (history.usage.reserved_bytes - history.usage.allocated_bytes)[counts]
    return int(unallocated.max()) if len(unallocated) else None


@dataclass(frozen=True)
class UsageSample:
    """The usage of a device's memory after one event.

    Attributes:
        event: The index of the event before the sample; None if the sample is before the first
            event.
        time_us: The event's time; None if unknown.
        step: The event's step; None if unknown.
        phase: The event's phase; "" for no phase, None if unknown.
        is_exact: Whether all values are exact. If not, the sizes of some blocks are unknown, except
            for their requested bytes. Then `requested_bytes`, `reserved_bytes` and `segments` are
            exact all the same, values of free memory are upper bounds, and the other values are
            lower bounds. A file of one phase lacks the events of other threads in other phases: in
            it, no value is exact, and none is a bound.
        uncertain_bytes: How many more bytes may have been allocated. 0: the sample is exact. None:
            the file is of one phase.
        requested_bytes: The bytes that the program requested for the active blocks.
        allocated_bytes: The bytes of the blocks that the program held, as the allocator rounded
            them.
        active_bytes: `allocated_bytes`, and the bytes of freed blocks that a stream still used.
        reserved_bytes: The bytes of the segments.
        fragmentation_bytes: `reserved_bytes - allocated_bytes`.
        rounding_bytes: `active_bytes - requested_bytes`.
        inactive_split_bytes: The bytes of free blocks in segments that were in use.
        largest_free_bytes: The size of the largest free block.
        free_concentration: The sum of the squares of the free blocks' sizes, divided by the square
            of the sum of these sizes: 1 for one block, near 0 for many small blocks. None if
            nothing was free, or the sample is not exact.
        segments: The number of segments, without expandable ones.
    """

    event: int | None
    time_us: int | None
    step: int | None
    phase: str | None
    is_exact: bool
    uncertain_bytes: int | None
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
        """Return the bytes of all free blocks."""
        return self.reserved_bytes - self.active_bytes

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes that the program has freed, but that a stream still uses."""
        return self.active_bytes - self.allocated_bytes


AMOUNTS = {
    "requested_bytes": "requested",
    "allocated_bytes": "allocated",
    "active_bytes": "active",
    "reserved_bytes": "reserved",
    "fragmentation_bytes": "reserved - allocated",
    "rounding_bytes": "active - requested",
    "inactive_split_bytes": "inactive split",
    "largest_free_bytes": "largest free block",
    "free_concentration": "Σ free² / (Σ free)²",
    "segments": "segments",
}
"""The words for the amounts of a sample, in the order in which tables have them."""


def time_of(trace: Trace, event: int) -> int | None:
    """Return the time of an event; None if the file does not have it."""
    time_us = int(trace.time_us[event])
    return None if time_us == NO_TIME else time_us


def sample_at(data: DeviceData, entry: int) -> UsageSample:
    """Return the usage of a device at an entry: 0 is before the first event, 1 after it."""
    usage = {field.name: getattr(data.history.usage, field.name)[entry] for field in fields(Usage)}
    return _sample(data, entry - 1, data.history.uncertain_at(entry), **usage)


def final_sample(data: DeviceData) -> UsageSample:
    """Return the usage of a device when the snapshot was taken, from its segments and blocks."""
    segments, blocks = data.snapshot.segments, data.snapshot.blocks
    of_device = segments.device == data.device
    here = of_device[blocks.segment]
    size, state = blocks.size_bytes[here], blocks.state[here]
    is_free = state == INACTIVE
    free = size[is_free]
    # A free block is split if its segment has other blocks.
    blocks_of = np.diff(np.append(segments.first_block, len(blocks)))
    may_split = (blocks_of > 1) & ~segments.is_expandable
    return _sample(
        data,
        len(data.trace) - 1,
        0,
        requested_bytes=blocks.requested_bytes[here][~is_free].sum(),
        allocated_bytes=size[state == ALLOCATED].sum(),
        active_bytes=size[~is_free].sum(),
        reserved_bytes=segments.size_bytes[of_device].sum(),
        inactive_split_bytes=free[may_split[blocks.segment[here][is_free]]].sum(),
        largest_free_bytes=free.max(initial=0),
        free_squares=np.square(free, dtype=np.float64).sum(),
        segments=np.count_nonzero(of_device & ~segments.is_expandable),
    )


def _sample(
    data: DeviceData, event: int, uncertain_bytes: int | None, *, free_squares: float, **usage: Any
) -> UsageSample:
    """Return the usage after an event, -1: before the first; `usage`: its columns in `Usage`."""
    trace = data.trace if event >= 0 else None
    usage = {name: int(value) for name, value in usage.items()}
    reserved, allocated = usage["reserved_bytes"], usage["allocated_bytes"]
    active = usage["active_bytes"]
    return UsageSample(
        event=None if trace is None else event,
        time_us=None if trace is None else time_of(trace, event),
        step=None if trace is None else step_at(data.boundaries, event),
        phase=None if trace is None else data.snapshot.strings[trace.user_metadata[event]],
        is_exact=uncertain_bytes == 0,
        uncertain_bytes=uncertain_bytes,
        fragmentation_bytes=reserved - allocated,
        rounding_bytes=active - usage["requested_bytes"],
        free_concentration=float(free_squares) / (reserved - active) ** 2
        if uncertain_bytes == 0 and reserved > active
        else None,
        **usage,
    )
