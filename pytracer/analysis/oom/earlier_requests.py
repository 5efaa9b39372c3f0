"""What the line of a failed allocation has requested before, in other steps and in the same one."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import UNKNOWN
from pytracer.analysis.device_data import DeviceData
from pytracer.reading.snapshot import ALLOC, Column

_LEAST_STEPS = 3  # the least number of earlier steps from which the usual size of requests is known

_LARGER = 1.25  # requests of more than this many times the largest earlier one are unusual

_MORE_OFTEN = 2
"""How many times as often as in an earlier step a line requests memory if it is in a loop."""

_SMALL_PART = 64  # a request is small if it is less than this part, 1/64, of the one that failed

_LEAST_REPLACED = 16  # the least number of blocks that a line has to replace by larger ones

_LEAST_SIZES = 8  # the least number of sizes of requests that grow little by little

_MOSTLY = 0.9  # the part of the steps in which a line requests more than in the one before

_EVEN = 1.1
"""The least growth in steps of one size, as of one token; the ring may have lost its beginning."""


@dataclass(frozen=True)
class EarlierRequests:
    """The requests of one line before one of them failed."""

    # The number of earlier steps in which the line requested memory; 0 if the other lines of the
    # step request no more than in those, or if the line has requested memory twice as often as in
    # each of them: then it is used for something else.
    steps: int
    most_bytes: int  # the largest request of these steps; 0 without such a step
    # How many blocks of the line were freed, in the step that failed, while its requests grew
    # little by little from `first_bytes` on, each next to the one before; 0 if they did not, or if
    # the blocks were kept.
    replaced: int
    first_bytes: int  # the first request of that step; 0 without one
    has_steps: bool  # whether the program marked steps; else all events count as one step
    # In how many steps the line has requested memory, if it was more in nearly each of them than in
    # the one before, from `least_bytes` on; else 0.
    growing: int
    least_bytes: int  # its largest request in the first of them; 0 without one

    def are_smaller(self, requested_bytes: int) -> bool:
        """Return whether a request is larger than all that are usual for the line."""
        return self.steps >= _LEAST_STEPS and requested_bytes > _LARGER * self.most_bytes


def earlier_requests(data: DeviceData, event: int) -> EarlierRequests | None:
    """Return what the line of an event has requested before it; None if the line is unknown."""
    trace, sites = data.trace, data.chains.sites
    site = sites[trace.stack[event]]
    if site == UNKNOWN:
        return None
    alloc = np.flatnonzero((trace.action[:event] == ALLOC) & (sites[trace.stack[:event]] == site))
    begins = np.array([first for _, first in data.boundaries if first <= event], np.int64)
    step = np.searchsorted(begins, alloc, "right")
    now = _without_small(trace.size_bytes, alloc[step == len(begins)])
    size, replaced = trace.size_bytes[np.append(now, event)], 0
    if len(now) >= _LEAST_REPLACED and _grows(size):
        blocks = data.history.blocks
        freed = blocks.free_requested_event[np.isin(blocks.alloc_event, now)]
        if np.count_nonzero(freed[:-1] > now[1:]) >= 0.9 * (len(now) - 1):
            replaced = int(np.count_nonzero(freed < event))
    of_step = np.zeros(len(begins) + 1, np.int64)
    np.maximum.at(of_step, step, trace.size_bytes[alloc])
    of_step[-1] = trace.size_bytes[event]
    most_of_step = of_step[of_step > 0]
    is_growing = len(most_of_step) >= _LEAST_REPLACED and _grows(most_of_step)
    is_growing &= bool((np.diff(most_of_step) > 0).sum() >= _MOSTLY * (len(most_of_step) - 1))
    steps, count = np.unique(step[step < len(begins)], return_counts=True)
    # A loop within the step, as an evaluation with its own batches, does not compare.
    is_same_use = np.count_nonzero(step == len(begins)) < _MORE_OFTEN * count.max(initial=0)
    is_larger = is_same_use and _is_larger(data, sites, event, begins)
    return EarlierRequests(
        steps=len(steps) if is_larger else 0,
        most_bytes=int(of_step[:-1].max(initial=0)),
        replaced=replaced if 2 * replaced >= len(now) else 0,
        first_bytes=int(size[0]) if len(now) else 0,
        has_steps=data.has_marked_steps,
        growing=len(most_of_step) if is_growing else 0,
        least_bytes=int(most_of_step[0]) if is_growing else 0,
    )


def _is_larger(data: DeviceData, sites: Column, event: int, begins: Column) -> bool:
    """Return whether at least half of the lines of the step request more than in any earlier one.

    Lines that are new in it do not count, and neither do those of small requests.
    """
    if not len(begins):
        return False
    trace = data.trace
    most: list[dict[int, int]] = []
    for begin, end in ((0, int(begins[-1])), (int(begins[-1]), event)):
        events = begin + np.flatnonzero(trace.action[begin:end] == ALLOC)
        found, site = np.unique(sites[trace.stack[events]], return_inverse=True)
        largest = np.zeros(len(found), np.int64)
        np.maximum.at(largest, site, trace.size_bytes[events])
        most.append(dict(zip(found.tolist(), largest.tolist(), strict=True)))
    earlier, now = most
    known = [(now[site], earlier[site]) for site in now if site in earlier]
    large = [pair for pair in known if _SMALL_PART * max(pair) >= trace.size_bytes[event]]
    larger = [pair for pair in large if pair[0] > _LARGER * pair[1]]
    return bool(larger) and 2 * len(larger) >= len(large)


def _without_small(size_bytes: Column, alloc: Column) -> Column:
    """Return the allocations without those much smaller than others of the line before them."""
    size = size_bytes[alloc]
    found: Column = alloc[2 * size >= np.maximum.accumulate(size)] if len(alloc) else alloc
    return found


def _grows(size: Column) -> bool:
    """Return whether requests become larger and larger, also if several lists grow alternately."""
    if len(np.unique(size)) < _LEAST_SIZES:
        return False
    is_steady = np.count_nonzero(size[1:] >= size[:-1]) >= 0.9 * (len(size) - 1)
    early, late = size[len(size) // 4], size[3 * len(size) // 4]
    is_little = np.median(size[1:] / np.maximum(size[:-1], 1)) <= _LARGER
    more = np.sort(np.diff(np.unique(size)))
    of_median = np.count_nonzero(more == more[len(more) // 2]) if len(more) else 0
    is_even = of_median >= 0.9 * max(len(more), _LEAST_REPLACED)
    if is_steady and is_even:
        return bool(size[-1] >= _EVEN * size[0])
    return bool(is_steady and is_little and late >= _LARGER * early and size[-1] >= 2 * size[0])
