"""The usage of each step and each phase of a training."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pytracer.analysis.blocks import Blocks, held_at, sum_by_group
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.history import History
from pytracer.reading.snapshot import ALLOC, GIVES_MEMORY, TAKES_MEMORY, Column, Trace

_PEAK = ("peak_bytes", "peak_event", "fragmentation_bytes", "peak_reserved_bytes")


@dataclass(frozen=True)
class Step:
    """The usage of one step.

    Attributes:
        step: The step's number; None for the events before the first known step.
        first_event: The index of the step's first event.
        end_event: The index after that of the step's last event.
        begins_in_trace: Whether the trace certainly has the step's beginning. If not, the ring may
            have overwritten it.
        begin_bytes: The allocated bytes before the step's first event; None without a history.
        end_bytes: The allocated bytes after the step's last event; None without a history.
        peak_bytes: The largest `allocated_bytes` from the beginning to the end of the step; None
            without a history.
        peak_event: The first event after which the peak was reached; None if the peak is
            `begin_bytes`.
        fragmentation_bytes: `reserved_bytes - allocated_bytes` at the peak.
        peak_reserved_bytes: The largest `reserved_bytes` in the step.
        is_exact: Whether the values above are exact. Otherwise `fragmentation_bytes` is an upper
            bound, `peak_reserved_bytes` is exact, and the others are lower bounds. In a file of one
            phase, no value is exact, and none is a bound.
        allocations: The number of allocations.
        allocations_bytes: The sum of the requested bytes of the allocations.
        device_allocs: How often the allocator took memory from the device.
        device_frees: How often the allocator gave memory back to the device.
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
    is_exact: bool
    allocations: int
    allocations_bytes: int
    device_allocs: int
    device_frees: int


@dataclass(frozen=True)
class Phase:
    """The usage of one phase, over all its occurrences.

    Attributes:
        phase: The phase's name (the events' `user_metadata`); "" for no phase; None for blocks
            older than the trace, whose phase is unknown.
        at_peak_bytes: The bytes of blocks that were allocated in the phase and active at the
            device's peak; None without a history. The values up to `end_bytes` are None then too.
        peak_bytes: The largest `allocated_bytes` after an event of the phase; None without events.
        peak_event: The first event after which the peak was reached.
        fragmentation_bytes: `reserved_bytes - allocated_bytes` at the peak.
        peak_reserved_bytes: The largest `reserved_bytes` after an event of the phase.
        end_bytes: The bytes of blocks that were allocated in the phase and are active at the end.
        is_exact: As in `Step`; `end_bytes` is always exact, and `at_peak_bytes` if the peak is.
        allocations: The number of allocations.
        allocations_bytes: The sum of the requested bytes of the allocations.
    """

    phase: str | None
    at_peak_bytes: int | None
    peak_bytes: int | None
    peak_event: int | None
    fragmentation_bytes: int | None
    peak_reserved_bytes: int | None
    end_bytes: int | None
    is_exact: bool
    allocations: int
    allocations_bytes: int


def steps(data: DeviceData) -> list[Step]:
    """Return the usage of each step; [] if the file has no steps."""
    trace, history, boundaries = data.trace, data.history, data.boundaries
    if not boundaries:
        return []
    edges = [first for _, first in boundaries] + [len(trace)]
    numbers: list[int | None] = [step for step, _ in boundaries]
    if edges[0] > 0:
        edges.insert(0, 0)
        numbers.insert(0, None)
    between = _between(trace, edges)
    # In pytracer's files the first step begins with the file, unless the ring overwrote events.
    begins = data.metadata.overwritten == 0
    found = []
    for i, (first, end) in enumerate(pairwise(edges)):
        found.append(
            Step(
                step=numbers[i],
                first_event=first,
                end_event=end,
                begins_in_trace=begins if i == 0 else True,
                **_usage_of_step(history, first, end),
                **{name: counts[i] for name, counts in between.items()},
            )
        )
    return found


def _usage_of_step(history: History, first: int, end: int) -> dict[str, Any]:
    """Return the usage of a `Step`, from the entry `first` to `end` of the history."""
    if not history.is_known:
        return dict.fromkeys(("begin_bytes", "end_bytes", *_PEAK)) | {"is_exact": False}
    allocated, reserved = history.usage.allocated_bytes, history.usage.reserved_bytes
    highest, highest_reserved = (
        first + int(column[first : end + 1].argmax()) for column in (allocated, reserved)
    )
    return {
        "begin_bytes": int(allocated[first]),
        "end_bytes": int(allocated[end]),
        **_peak(history, highest, highest_reserved),
        "peak_event": None if highest == first else highest - 1,
        "is_exact": history.uncertain_at(first, end) == 0,
    }


def _peak(history: History, highest: int, highest_reserved: int) -> dict[str, int]:
    """Return the values of a step or phase that describe its peak.

    Args:
        highest, highest_reserved: The entries with the largest `allocated_bytes` and
            `reserved_bytes`.
    """
    usage = history.usage
    allocated, reserved = int(usage.allocated_bytes[highest]), int(usage.reserved_bytes[highest])
    return {
        "peak_bytes": allocated,
        "peak_event": highest - 1,
        "fragmentation_bytes": reserved - allocated,
        "peak_reserved_bytes": int(usage.reserved_bytes[highest_reserved]),
    }


def _between(trace: Trace, edges: list[int]) -> dict[str, Any]:
    def count(*actions: int) -> list[int]:
        is_counted = np.zeros(256, bool)  # for each value of uint8
        is_counted[list(actions)] = True
        found = np.flatnonzero(is_counted[trace.action])
        counts: list[int] = np.diff(np.searchsorted(found, edges)).tolist()
        return counts

    allocs = np.flatnonzero(trace.action == ALLOC)
    total = np.append(0, np.cumsum(trace.size_bytes[allocs]))
    return {
        "allocations": count(ALLOC),
        "allocations_bytes": np.diff(total[np.searchsorted(allocs, edges)]).tolist(),
        "device_allocs": count(*TAKES_MEMORY),
        "device_frees": count(*GIVES_MEMORY),
    }


def phases(data: DeviceData, peak: int | None) -> list[Phase]:
    """Return the usage of each phase.

    Args:
        peak: The entry of the history at the device's peak; None if the history is unknown.

    Returns:
        The phases, sorted by the bytes they hold at the peak, then in the order of the trace.
    """
    trace, history, strings = data.trace, data.history, data.snapshot.strings
    allocs = trace.action == ALLOC
    allocations = np.bincount(trace.user_metadata[allocs], minlength=len(strings))
    allocations_bytes = sum_by_group(
        trace.user_metadata[allocs], trace.size_bytes[allocs], len(strings)
    )
    runs = _runs(trace)
    in_order = dict.fromkeys(trace.user_metadata[runs].tolist())
    at_peak: dict[str | None, int] = {}
    at_end: dict[str | None, int] = {}
    own: dict[int | None, dict[str, Any]] = {}
    if history.is_known:
        at_peak, at_end = _by_phase(held_at(data, peak)), _by_phase(held_at(data, None))
        own = _own_peaks(trace, runs, history)
    names: list[int | None] = [*in_order]
    if None in at_peak or None in at_end:
        names.append(None)
    unknown = dict.fromkeys(_PEAK) | {"is_exact": history.is_known and history.exact_from == 0}
    found = []
    for name in names:
        phase = None if name is None else strings[name]
        found.append(
            Phase(
                phase=phase,
                at_peak_bytes=at_peak.get(phase, 0) if history.is_known else None,
                end_bytes=at_end.get(phase, 0) if history.is_known else None,
                **own.get(name, unknown),
                allocations=0 if name is None else int(allocations[name]),
                allocations_bytes=0 if name is None else int(allocations_bytes[name]),
            )
        )
    return sorted(found, key=lambda phase: -(phase.at_peak_bytes or 0))


def _by_phase(held: Blocks) -> dict[str | None, int]:
    """Return the active bytes by phase; None has the blocks older than the trace."""
    return {phase: found.size_bytes for found in held.group("phase") for phase in found.key}


def _runs(trace: Trace) -> Column:
    """Return where runs of events of one phase begin: far fewer than there are events."""
    changes = np.flatnonzero(trace.user_metadata[1:] != trace.user_metadata[:-1]) + 1
    return np.append(0, changes)[: len(trace)]


def _own_peaks(trace: Trace, runs: Column, history: History) -> dict[int | None, dict[str, Any]]:
    """Return the peak of each phase, after its own events."""
    usage = history.usage
    allocated, reserved = (
        _highest(trace, runs, column[1:])
        for column in (usage.allocated_bytes, usage.reserved_bytes)
    )
    has_bounds = {*trace.user_metadata[: max(history.exact_from - 1, 0)].tolist()}
    found: dict[int | None, dict[str, Any]] = {}
    for phase, event in allocated.items():
        peak = _peak(history, event + 1, reserved[phase] + 1)
        is_highest = history.has_bounds and peak["peak_bytes"] >= history.most_before_bytes
        found[phase] = peak | {"is_exact": is_highest or phase not in has_bounds}
    return found


def _highest(trace: Trace, runs: Column, after: Column) -> dict[int, int]:
    """Return for each phase the first event after which a column of the usage was highest."""
    if len(runs) == 0:
        return {}
    highest, phase = np.maximum.reduceat(after, runs), trace.user_metadata[runs]
    order = np.lexsort((-highest, phase))  # stable: of equal values the earliest comes first
    _, first = np.unique(phase[order], return_index=True)
    ends = np.append(runs[1:], len(trace))
    return {
        int(phase[run]): int(runs[run] + after[runs[run] : ends[run]].argmax())
        for run in order[first].tolist()
    }
