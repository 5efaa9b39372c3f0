"""What the line of a failed allocation has requested before, in other steps and in the same one."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import UNKNOWN, call_sites
from pytracer.analysis.device_data import DeviceData
from pytracer.reading.snapshot import ALLOC, Column

_LEAST_STEPS = 3
"""The least number of earlier steps from which the usual size of requests is known."""

_LARGER = 1.25
"""Requests of more than this many times the largest earlier one are unusual."""

_LEAST_REPLACED = 16
"""The least number of blocks that a line has to replace by larger ones."""


@dataclass(frozen=True)
class EarlierRequests:
    """The requests of one line before one of them failed.

    Attributes:
        steps: The number of earlier steps in which the line requested memory.
        most_bytes: The largest request of these steps; 0 without such a step.
        replaced: How many blocks of the line were freed, in the step that failed, while its
            requests grew from `first_bytes` on; 0 if they did not grow, or if the blocks were kept.
        first_bytes: The first request of that step; 0 without one.
        has_steps: Whether the program marked steps; else all events count as one step.
    """

    steps: int
    most_bytes: int
    replaced: int
    first_bytes: int
    has_steps: bool

    def are_smaller(self, requested_bytes: int) -> bool:
        """Return whether a request is larger than all that are usual for the line."""
        return self.steps >= _LEAST_STEPS and requested_bytes > _LARGER * self.most_bytes


def earlier_requests(data: DeviceData, event: int) -> EarlierRequests | None:
    """Return what the line of an event has requested before it; None if the line is unknown."""
    trace, sites = data.trace, call_sites(data.snapshot.stacks)
    site = sites[trace.stack[event]]
    if site == UNKNOWN:
        return None
    alloc = np.flatnonzero((trace.action[:event] == ALLOC) & (sites[trace.stack[:event]] == site))
    begins = np.array([first for _, first in data.boundaries if first <= event], np.int64)
    step = np.searchsorted(begins, alloc, "right")
    earlier = alloc[step < len(begins)]
    now = _without_small(trace.size_bytes, alloc[step == len(begins)])
    size, replaced = trace.size_bytes[np.append(now, event)], 0
    if len(now) >= _LEAST_REPLACED and _grows(size):
        blocks = data.history.blocks
        is_freed = np.isin(blocks.alloc_event, now) & (blocks.free_requested_event < event)
        replaced = int(np.count_nonzero(is_freed))
    return EarlierRequests(
        steps=len(np.unique(step[step < len(begins)])),
        most_bytes=int(trace.size_bytes[earlier].max(initial=0)),
        replaced=replaced if 2 * replaced >= len(now) else 0,
        first_bytes=int(size[0]) if len(now) else 0,
        has_steps=data.has_marked_steps,
    )


def _without_small(size_bytes: Column, alloc: Column) -> Column:
    """Return the allocations without those much smaller than others of the line before them."""
    size = size_bytes[alloc]
    found: Column = alloc[2 * size >= np.maximum.accumulate(size)] if len(alloc) else alloc
    return found


def _grows(size: Column) -> bool:
    """Return whether requests become larger and larger, also if several lists grow by turns."""
    is_steady = np.count_nonzero(size[1:] >= size[:-1]) >= 0.9 * (len(size) - 1)
    early, late = size[len(size) // 4], size[3 * len(size) // 4]
    return bool(is_steady and late >= _LARGER * early and size[-1] >= 2 * size[0])
