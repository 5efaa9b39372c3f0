"""What happened in each step of the training, and in each of its phases."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pytracer.reading.about import about_device, annotations, is_count
from pytracer.reading.history import History
from pytracer.reading.sites import alive_at, sums
from pytracer.reading.snapshot import (
    ALLOC,
    NO_TIME,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Column,
    Snapshot,
    Trace,
)

Marks = list[tuple[int, int]]
"""Where steps begin in a trace: (step, index of its first event), in the order of events."""

_PEAK = ("peak_bytes", "peak_event", "fragmentation_bytes", "peak_reserved_bytes")

_PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        step: Its number; None: before the first that is known.
        first_event, end_event: Its events are those from the one to before the other.
        begins_in_trace: False: the ring has lost its beginning, or may have.
        begin_bytes, end_bytes: Allocated before its first event, and after its last; None without a
            history.
        peak_bytes: The most allocated in between, both ends included; None without a history.
        peak_event: The first event after which that was so; None: it was at the beginning.
        fragmentation_bytes: Reserved, not allocated, at that moment.
        peak_reserved_bytes: The most reserved in between.
        inexact: Which of these levels are not exact but bounds, by name: lower ones, and an upper
            one of fragmentation. In a file of one phase they are not even that.
        allocations: How many there were.
        allocations_bytes: What these asked for, altogether.
        device_allocs, device_frees: How often memory was taken from the device, and given back.
    """

    step: int | None
    first_event: int
    end_event: int
    begins_in_trace: bool
    begin_bytes: int | None
    end_bytes: int | None
    peak_bytes: int | None
    peak_event: int | None
    fragmentation_bytes: int | None
    peak_reserved_bytes: int | None
    inexact: list[str]
    allocations: int
    allocations_bytes: int
    device_allocs: int
    device_frees: int


@dataclass(frozen=True)
class Phase:
    """One phase, all times that it occurred together.

    Attributes:
        phase: Its name (the events' `user_metadata`); "": none; None: blocks that are older than
            the trace, of which it is not known.
        at_peak_bytes: Of the blocks that were active at the device's peak, those allocated in the
            phase; None without a history, as what follows.
        peak_bytes: The most allocated after an event of the phase; None: it has no event.
        peak_event: The first event after which that was so.
        fragmentation_bytes: Reserved, not allocated, at that moment.
        peak_reserved_bytes: The most reserved after an event of the phase; None as `peak_bytes`.
        end_bytes: Of the blocks that are active in the end, those allocated in the phase.
        inexact: As in `Step`.
        allocations: How many there were.
        allocations_bytes: What these asked for, altogether.
    """

    phase: str | None
    at_peak_bytes: int | None
    peak_bytes: int | None
    peak_event: int | None
    fragmentation_bytes: int | None
    peak_reserved_bytes: int | None
    end_bytes: int | None
    inexact: list[str]
    allocations: int
    allocations_bytes: int


def nothing_exact(history: History) -> History:
    """The history of a file of one phase: what others did meanwhile is missing in all levels."""
    return replace(history, exact_from=len(history.levels.allocated_bytes))


def has_bounds(history: History) -> bool:
    """Whether levels that are not exact are bounds: not so after `nothing_exact`."""
    return history.exact_from < len(history.levels.allocated_bytes)


def is_certain(history: History, peak: int, begin: int = 0, end: int | None = None) -> bool:
    """Whether an entry that has most allocated from one entry to before another one really has.

    What was allocated while that is not known was no more than what was reserved, which is.
    """
    levels, exact_from = history.levels, history.exact_from
    most = levels.reserved_bytes[begin:end][: max(exact_from - begin, 0)].max(initial=0)
    return has_bounds(history) and bool(levels.allocated_bytes[peak] >= most)


def step_marks(snapshot: Snapshot, device: int) -> Marks:
    """Where steps begin in a trace.

    pytracer's files tell. In others' they are torch.profiler's, if it was on and torch's recorder
    took notes of it (`global_record_annotations=True`): annotations named `ProfilerStep#N`.
    """
    events = len(snapshot.traces[device])
    told = about_device(snapshot, device).get("steps")
    marks = [
        (mark[0], mark[1])
        for mark in (told if isinstance(told, list | tuple) else ())
        if isinstance(mark, list | tuple) and len(mark) == 2 and all(map(is_count, mark))
    ]
    if not snapshot.about:
        marks = list(_profiler_steps(snapshot, device))
    marks = [mark for mark in marks if 0 <= mark[1] < events]
    return sorted(marks, key=lambda mark: mark[1])


def _profiler_steps(snapshot: Snapshot, device: int) -> Iterator[tuple[int, int]]:
    time_us = snapshot.traces[device].time_us
    if len(time_us) == 0 or time_us.min() == NO_TIME:
        return
    for each in annotations(snapshot):
        step = _PROFILER_STEP.fullmatch(each.name)
        if step and each.stage == "START":
            yield int(step[1][:10]), int(np.searchsorted(time_us, each.time_us))


def step_at(marks: Marks, event: int) -> int | None:
    """The step of an event; None: of none."""
    after = bisect_right(marks, event, key=lambda mark: mark[1])
    return marks[after - 1][0] if after else None


def steps(snapshot: Snapshot, device: int, history: History | None, marks: Marks) -> list[Step]:
    """What happened in each step; nothing, if the file does not tell of steps."""
    trace = snapshot.traces[device]
    if not marks:
        return []
    edges = [first for _, first in marks] + [len(trace)]
    numbers: list[int | None] = [step for step, _ in marks]
    if edges[0] > 0:
        edges.insert(0, 0)
        numbers.insert(0, None)
    between = _between(trace, edges)
    # In pytracer's files the first step begins with the file, unless the ring has lost that.
    begins = about_device(snapshot, device).get("overwritten") == 0
    found = []
    for i, (first, end) in enumerate(pairwise(edges)):
        found.append(
            Step(
                step=numbers[i],
                first_event=first,
                end_event=end,
                begins_in_trace=begins if i == 0 else True,
                **_levels_of_step(history, first, end),
                **{name: counts[i] for name, counts in between.items()},
            )
        )
    return found


def _levels_of_step(history: History | None, first: int, end: int) -> dict[str, Any]:
    """What a `Step` tells of levels, from the entry `first` to `end`."""
    if history is None:
        return _no_levels(("begin_bytes", "end_bytes", *_PEAK))
    allocated, reserved = history.levels.allocated_bytes, history.levels.reserved_bytes
    highest, highest_reserved = (
        first + int(level[first : end + 1].argmax()) for level in (allocated, reserved)
    )
    ends = {"begin_bytes": first, "end_bytes": end}
    peak = _peak(history, highest, highest_reserved, is_certain(history, highest, first, end + 1))
    return {
        **{name: int(allocated[entry]) for name, entry in ends.items()},
        **peak,
        "peak_event": None if highest == first else highest - 1,
        "inexact": [name for name, entry in ends.items() if entry < history.exact_from]
        + peak["inexact"],
    }


def _no_levels(names: Iterable[str]) -> dict[str, Any]:
    return {**dict.fromkeys(names), "inexact": []}


def _peak(
    history: History, highest: int, highest_reserved: int, is_peak_exact: bool
) -> dict[str, Any]:
    """What a step or phase tells of its peak, given the entry where most was allocated."""
    levels, exact_from = history.levels, history.exact_from
    allocated, reserved = int(levels.allocated_bytes[highest]), int(levels.reserved_bytes[highest])
    is_exact = {
        "peak_bytes": is_peak_exact,
        "fragmentation_bytes": highest >= exact_from,
        "peak_reserved_bytes": has_bounds(history),
    }
    return {
        "peak_bytes": allocated,
        "peak_event": highest - 1,
        "fragmentation_bytes": reserved - allocated,
        "peak_reserved_bytes": int(levels.reserved_bytes[highest_reserved]),
        "inexact": [name for name, is_one in is_exact.items() if not is_one],
    }


def _between(trace: Trace, edges: list[int]) -> dict[str, Any]:
    """Counts of events from each of the indices to before the next one."""

    def count(*actions: int) -> list[int]:
        is_one = np.zeros(256, bool)  # of all that an action can be
        is_one[list(actions)] = True
        found = np.flatnonzero(is_one[trace.action])
        return [int(each) for each in np.diff(np.searchsorted(found, edges))]

    allocs = np.flatnonzero(trace.action == ALLOC)
    total = np.append(0, np.cumsum(trace.size_bytes[allocs]))
    return {
        "allocations": count(ALLOC),
        "allocations_bytes": np.diff(total[np.searchsorted(allocs, edges)]).tolist(),
        "device_allocs": count(SEGMENT_ALLOC, SEGMENT_MAP),
        "device_frees": count(SEGMENT_FREE, SEGMENT_UNMAP),
    }


def phases(
    snapshot: Snapshot, device: int, history: History | None, peak: int | None
) -> list[Phase]:
    """What happened in each phase.

    Args:
        snapshot: Any.
        device: The index of the trace.
        history: Its history; None: there is none.
        peak: The entry of its levels that is the device's peak; None without a history.

    Returns:
        The phases, those that hold most at the peak first, then as they come in the trace.
    """
    trace = snapshot.traces[device]
    allocs = trace.action == ALLOC
    allocations = np.bincount(trace.user_metadata[allocs], minlength=len(snapshot.strings))
    allocations_bytes = sums(
        trace.user_metadata[allocs], trace.size_bytes[allocs], len(snapshot.strings)
    )
    runs = _runs(trace)
    in_order = dict.fromkeys(trace.user_metadata[runs].tolist())
    at_peak: dict[int | None, int] = {}
    in_the_end: dict[int | None, int] = {}
    own: dict[int | None, dict[str, Any]] = {}
    is_peak_exact = True
    if history is not None and peak is not None:
        at_peak = _held(snapshot, history, peak)
        in_the_end = _held(snapshot, history, len(trace))
        own = _own_peaks(trace, runs, history)
        is_peak_exact = peak >= history.exact_from
    names: list[int | None] = [*in_order]
    if None in at_peak or None in in_the_end:
        names.append(None)
    found = []
    for name in names:
        levels = own.get(name) or _no_levels(_PEAK)
        levels["inexact"] += [] if is_peak_exact else ["at_peak_bytes"]
        found.append(
            Phase(
                phase=None if name is None else snapshot.strings[name],
                at_peak_bytes=None if history is None else at_peak.get(name, 0),
                end_bytes=None if history is None else in_the_end.get(name, 0),
                **levels,
                allocations=0 if name is None else int(allocations[name]),
                allocations_bytes=0 if name is None else int(allocations_bytes[name]),
            )
        )
    return sorted(found, key=lambda phase: -(phase.at_peak_bytes or 0))


def _held(snapshot: Snapshot, history: History, level: int) -> dict[int | None, int]:
    """Active bytes by phase; None: older than the trace."""
    blocks, alive = history.blocks, alive_at(history, level)
    known = alive & (blocks.alloc_event >= 0)
    of_phase = sums(blocks.user_metadata[known], blocks.size_bytes[known], len(snapshot.strings))
    held: dict[int | None, int] = {int(i): int(of_phase[i]) for i in np.flatnonzero(of_phase)}
    older = int(blocks.size_bytes[alive & ~known].sum())
    return held | ({None: older} if older else {})


def _runs(trace: Trace) -> Column:
    """Where runs of events of one phase begin. There are few of these, beside events."""
    changes = np.flatnonzero(trace.user_metadata[1:] != trace.user_metadata[:-1]) + 1
    return np.append(0, changes)[: len(trace)]


def _own_peaks(trace: Trace, runs: Column, history: History) -> dict[int | None, dict[str, Any]]:
    """What each `Phase` tells of levels after its own events."""
    most, most_reserved = (
        _highest(trace, runs, level[1:])
        for level in (history.levels.allocated_bytes, history.levels.reserved_bytes)
    )
    names, run = np.unique(trace.user_metadata[runs], return_index=True)
    first = dict(zip(names.tolist(), runs[run].tolist(), strict=True))
    found: dict[int | None, dict[str, Any]] = {}
    for phase, event in most.items():
        is_peak_exact = is_certain(history, event + 1, first[phase] + 1)
        found[phase] = _peak(history, event + 1, most_reserved[phase] + 1, is_peak_exact)
    return found


def _highest(trace: Trace, runs: Column, after: Column) -> dict[int, int]:
    """For each phase the event after which a level was highest, the first of them."""
    if len(runs) == 0:
        return {}
    highest, phase = np.maximum.reduceat(after, runs), trace.user_metadata[runs]
    order = np.lexsort((-highest, phase))  # it is stable: the earliest comes first
    _, first = np.unique(phase[order], return_index=True)
    ends = np.append(runs[1:], len(trace))
    return {
        int(phase[run]): int(runs[run] + after[runs[run] : ends[run]].argmax())
        for run in order[first].tolist()
    }
