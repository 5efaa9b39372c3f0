"""The usage and the outcome of a recording, and of a replay as its process has recorded it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.analysis.history import History
from pytracer.analysis.history import replay as history_of
from pytracer.analysis.report import count_events
from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, LEAVE, Recording, Requests
from pytracer.analysis.unallocated import peak_unallocated, unallocated_after
from pytracer.experiments.comparison import Curve, Failures, Outcome, Setting
from pytracer.experiments.replay_result import Deviation, Replayed
from pytracer.reading.reader import load
from pytracer.reading.snapshot import ALLOC, FREE_COMPLETED, OOM, Column, Trace


def read_replay(
    setting: Setting, recording: Recording, folder: Path, answer: dict[str, Any], wall_s: float
) -> Replayed:
    """Read the files of a replay's process (see `replay_process.main`).

    Args:
        setting: The setting, to which the outcome is added.
        recording: What was replayed.
        folder: The folder of the files.
        answer: The content of `answer.json`.
        wall_s: How long the process took.
    """
    requests = recording.requests
    snapshot = load(folder / "trace.pickle")
    trace, done = snapshot.traces[0], np.load(folder / "done.npy")
    history = _without_left(requests, history_of(snapshot), trace, done)
    events = np.flatnonzero(trace.action == OOM)
    ooms = np.array(answer["ooms"], np.int64)
    assert len(events) == len(ooms), "an out-of-memory is missing in the replay's trace"
    events, ooms = events[ooms >= 0], ooms[ooms >= 0]
    curve = _curve(history, trace, done, _failures(history, trace, events, ooms))
    failed = answer["failed_request"]
    setting.outcomes.append(
        replace(
            _outcome(history, trace, events),
            limit_bytes=answer["limit_bytes"] or answer["free_bytes"],
            retries=answer["retries"],
            wall_s=wall_s,
            ended_early=failed is not None or _ends_by_oom(requests),
        )
    )
    return Replayed(
        setting=setting,
        curve=curve,
        failed_event=None if failed is None else int(requests.event[failed]),
        failed_bytes=None if failed is None else int(requests.size_bytes[failed]),
        end_reserved_bytes=int(history.usage.reserved_bytes[-1]),
        end_allocated_bytes=int(history.usage.allocated_bytes[-1]),
        free_bytes=answer["free_bytes"],
        limit_bytes=answer["limit_bytes"],
        fitted=answer["fitted"],
        freed_early=answer["freed_early"],
        asked_s=answer["seconds"],
    )


def peak_bytes_of(recording: Recording) -> int:
    """Return the peak of reserved bytes in a recording."""
    return int(recording.history.usage.reserved_bytes.max())


def recorded_setting(recording: Recording) -> Setting:
    """Return the numbers of the recording itself, as those of a setting."""
    trace = recording.trace
    outcome = _outcome(recording.history, trace, np.flatnonzero(trace.action == OOM))
    outcome = replace(outcome, limit_bytes=recording.limit_bytes)
    return Setting("recorded", recording.settings, [outcome])


def recorded_curve(recording: Recording) -> Curve:
    """Return the usage after each allocation and free of a recording."""
    requests, usage = recording.requests, recording.history.usage
    is_in_trace = (requests.event >= 0) & np.isin(requests.kind, (ALLOCATE, FREE))
    (request,) = np.nonzero(is_in_trace)
    entry = requests.event[request] + 1
    (failed,) = np.nonzero(requests.kind == FAIL)
    failures = _failures(recording.history, recording.trace, requests.event[failed], failed)
    return Curve(request, usage.reserved_bytes[entry], usage.allocated_bytes[entry], failures)


def deviation_of(recording: Recording, recorded: Curve, reference: Replayed) -> Deviation:
    """Compare a recording with its replay under its own settings and limit."""
    curve = reference.curve
    assert curve is not None
    _, here, there = np.intersect1d(curve.request, recorded.request, return_indices=True)
    difference = curve.reserved_bytes[here] - recorded.reserved_bytes[there]
    largest = int(np.argmax(np.abs(difference))) if len(difference) else 0
    peak_bytes = peak_bytes_of(recording)
    peak_difference = (reference.setting.outcomes[0].peak_reserved_bytes or 0) - peak_bytes
    is_equal = not np.any(difference)
    missed = 0
    if reference.failed_event is not None:
        events = recording.requests.event[recorded.request]
        missed = int(np.count_nonzero(events >= reference.failed_event))
    return Deviation(
        requests=len(difference),
        equal=int(np.count_nonzero(difference == 0)),
        missed=missed,
        largest_bytes=0 if is_equal else int(difference[largest]),
        largest_event=None
        if is_equal
        else int(recording.requests.event[recorded.request[there[largest]]]),
        mean_bytes=float(np.abs(difference).mean()) if len(difference) else 0.0,
        peak_bytes=peak_difference,
        peak_share=peak_difference / peak_bytes,
    )


def _outcome(history: History, trace: Trace, failed_events: Column) -> Outcome:
    """Return the numbers of a trace; `failed_events` are the out-of-memory events that count."""
    counts = count_events(trace, is_cpu=False)
    last = int(failed_events[-1]) if len(failed_events) else None
    is_complete = history.usage.reserved_bytes[0] == 0 and history.exact_from == 0
    return Outcome(
        peak_reserved_bytes=int(history.usage.reserved_bytes.max()),
        peak_allocated_bytes=int(history.usage.allocated_bytes.max()),
        peak_unallocated_bytes=peak_unallocated(history, trace),
        oom_unallocated_bytes=None if last is None else unallocated_after(history, last),
        oom_reserved_bytes=None if last is None else int(history.usage.reserved_bytes[last + 1]),
        oom_requested_bytes=None if last is None else int(trace.size_bytes[last]),
        device_allocs=counts.device_allocs,
        retries=counts.retries,
        ooms=len(failed_events),
        lower_bounds=[] if is_complete else ["peak_unallocated_bytes"],
    )


def _ends_by_oom(requests: Requests) -> bool:
    """Return whether nothing is allocated after the last allocation that failed."""
    allocations = requests.kind[np.isin(requests.kind, (ALLOCATE, FAIL))]
    return bool(allocations[-1] == FAIL)


def _events(trace: Trace, done: Column) -> Column:
    """Return the allocations and frees in the trace; `done` has the request of each, or -1."""
    (events,) = np.nonzero((trace.action == ALLOC) | (trace.action == FREE_COMPLETED))
    assert len(events) == len(done), "the replay's ring was too small"
    return events


def _curve(history: History, trace: Trace, done: Column, failures: Failures) -> Curve:
    answered = done >= 0
    entry = _events(trace, done)[answered] + 1
    usage = history.usage
    reserved, allocated = usage.reserved_bytes[entry], usage.allocated_bytes[entry]
    return Curve(done[answered], reserved, allocated, failures)


def _failures(history: History, trace: Trace, events: Column, request: Column) -> Failures:
    """Return the out-of-memory events of these requests."""
    reserved_bytes = history.usage.reserved_bytes[events + 1]
    return Failures(request, trace.size_bytes[events].astype(np.int64), reserved_bytes)


def _without_left(requests: Requests, history: History, trace: Trace, done: Column) -> History:
    """Return the history without the blocks whose free waits for a stream.

    The program has given these blocks up (`LEAVE`), so they do not count as allocated, but the
    replay's allocator has them until their `FREE`.
    """
    is_left = requests.kind == LEAVE
    if not np.any(is_left) or not np.any(done >= 0):
        return history
    left = np.full(int(requests.block.max()) + 1, -1)  # the request that leaves each block
    left[requests.block[is_left]] = np.flatnonzero(is_left)
    events, blocks = _events(trace, done), history.blocks
    request = done[np.searchsorted(events, blocks.alloc_event)]
    when = np.where(request >= 0, left[requests.block[request]], -1)
    # A block waits from the first event after it was left to its own free.
    (answered,) = np.nonzero(done >= 0)
    after = answered[np.minimum(np.searchsorted(done[answered], when), len(answered) - 1)]
    begin, end = events[after] + 1, blocks.free_event + 1
    counts = (when >= 0) & (done[after] > when) & (begin < end)
    waiting = np.zeros(len(history.usage.allocated_bytes) + 1, np.int64)
    np.add.at(waiting, begin[counts], blocks.size_bytes[counts])
    np.add.at(waiting, end[counts], -blocks.size_bytes[counts])
    allocated_bytes = history.usage.allocated_bytes - np.cumsum(waiting)[:-1]
    return replace(history, usage=replace(history.usage, allocated_bytes=allocated_bytes))
