"""What a recording's program would have come to under other settings of the allocator.

What it asked for is asked of the real allocator of the device at hand, under each setting in a
process of its own.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pytracer import settings as allocator_settings
from pytracer.child_process import last_exception, python_command
from pytracer.comparison import Outcome, Setting
from pytracer.errors import ConfigError, PytracerError
from pytracer.reading.counts import counts_of
from pytracer.reading.history import History
from pytracer.reading.history import replay as history_of
from pytracer.reading.reader import load
from pytracer.reading.requests import (
    ALLOCATE,
    ASKED,
    FAIL,
    FREE,
    LEAVE,
    Recording,
    Requests,
    recording_of,
)
from pytracer.reading.snapshot import ALLOC, FREE_COMPLETED, Column, Trace
from pytracer.reading.text import number, size
from pytracer.replay_outcome import Curve, Deviation, Replay, Replayed

CHECKS_AT_ONCE = 4  # each takes a process, and memory of the device

MAX_STREAMS = 65  # torch has 32 of each of two priorities, and the default one

KEPT_VARIABLES = ("PYTRACER_HOOK_DIR", "PYTRACER_BUILD")


class NoRoomError(PytracerError):
    """The device has less memory than a replay may need."""


NO_ACCELERATOR = (
    "there is no accelerator here to replay on, torch finds none: it is the real allocator of the "
    "device at hand that answers"
)

OWN = "own settings"
"""The name of the recording's own settings."""


def replay(
    path: str | os.PathLike[str],
    settings: Sequence[str],
    *,
    capacity_bytes: int | None = None,
    device: int | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Replay:
    """Replays a snapshot under its own settings, and under each of the others.

    Args:
        path: A snapshot of pytracer or of torch's own recorder.
        settings: Changes to the recording's settings, as `expandable_segments:True`.
        capacity_bytes: How much the allocator may reserve; None: as much as it could when it was
            recorded, if the file tells, else all that is free on the device at hand.
        device: The device's index in the file; None: the accelerator with most events.
        on_progress: Is told each setting's name when it begins.

    Raises:
        PytracerError: The file cannot be replayed (`recording_of` says when), there is no
            accelerator here, or it has less memory than is needed.
        ConfigError: The allocator refuses a setting.
    """
    changes = _changes(settings)
    if capacity_bytes is not None and capacity_bytes <= 0:
        raise ConfigError(f"capacity_bytes={capacity_bytes}: give more than 0, or None")
    recording = recording_of(load(os.fspath(path)), device)
    full = [allocator_settings.merged(recording.settings, each) for each in changes]
    _check(changes, recording.settings)
    own = Setting(f"{OWN} ({recording.settings or 'defaults'})", recording.settings)
    others = [Setting(name, each) for name, each in zip(changes, full, strict=True)]

    def under(setting: Setting, limit_bytes: int | None, needed_bytes: int) -> Replayed:
        on_progress(setting.name)
        return _replay_under(setting, recording, limit_bytes, needed_bytes)

    peak_bytes = _peak_bytes(recording)
    faithful: Replayed | None = None
    why_unknown = "its process failed"
    if capacity_bytes is None or capacity_bytes == recording.limit_bytes:
        limit_bytes = recording.limit_bytes
        replayed = [under(each, limit_bytes, peak_bytes) for each in (own, *others)]
        faithful = replayed[0]
    else:
        # How near a replay is shows only where it has as much memory as the recording had.
        limit_bytes = capacity_bytes
        try:
            faithful = under(Setting(own.name, own.settings), recording.limit_bytes, peak_bytes)
        except NoRoomError as error:
            why_unknown = str(error)
        replayed = [under(each, limit_bytes, limit_bytes) for each in (own, *others)]
    recorded, deviation = _recorded_curve(recording), None
    if faithful is not None and faithful.curve is not None:
        deviation = _deviation(recording, recorded, faithful)
    notes = list(_notes(recording, faithful))
    if deviation is None:
        notes.append(f"how near a replay is to the recording is not known: {why_unknown}")
    there_bytes = min((each.free_bytes for each in replayed if each.free_bytes), default=None)
    if limit_bytes is not None and there_bytes is not None and there_bytes < limit_bytes:
        notes.append(
            f"the recording had {size(limit_bytes)}, the device here has {size(there_bytes)} free: "
            "that is what the replays had"
        )
        limit_bytes = there_bytes
    return Replay(
        path=os.fspath(path),
        device=recording.name,
        recorded=_recorded(recording),
        recorded_curve=recorded,
        requests=len(recording.requests),
        older_blocks=recording.requests.older_blocks,
        older_freed=recording.requests.older_freed,
        capacity_bytes=limit_bytes,
        deviation=deviation,
        replayed=replayed,
        notes=notes,
    )


def _changes(settings: Sequence[str]) -> list[str]:
    if isinstance(settings, str):
        raise ConfigError(f"settings={settings!r}: give a list of those to compare")
    for each in settings:
        if not each.strip():
            raise ConfigError('settings "": give NAME:VALUE; those of the recording come anyway')
        if each == "current":
            raise ConfigError('"current": the recording\'s own settings are replayed anyway')
        if "per_process_memory_fraction" in each:
            raise ConfigError(f'"{each}": how much a replay may reserve is its capacity')
    return list(dict.fromkeys(settings))


def _check(changes: Sequence[str], settings: str) -> None:
    """Has the allocator try all of them, so that a wrong one is told before anything is done."""
    with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
        backends = pool.map(
            lambda change: allocator_settings.check_in_new_process(change, settings), changes
        )
        if None in backends:
            raise PytracerError(NO_ACCELERATOR)


def _replay_under(
    setting: Setting,
    recording: Recording,
    limit_bytes: int | None,
    needed_bytes: int,
) -> Replayed:
    """In a process of its own."""
    requests = recording.requests
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTRACER") or name in KEPT_VARIABLES
    }
    kept |= allocator_settings.variables("", setting.settings)
    limit = "" if limit_bytes is None else str(limit_bytes)
    with tempfile.TemporaryDirectory(prefix="pytracer-replay-") as folder:
        columns = {name: getattr(requests, name) for name in ASKED}
        np.savez(Path(folder, "requests.npz"), **columns)
        began = time.monotonic()
        done = subprocess.run(
            python_command("pytracer.replay_process", folder, limit, str(needed_bytes)),
            env=kept,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        wall_s = time.monotonic() - began
        if done.returncode != 0:
            failure = f"its process ended with {done.returncode}: {last_exception(done.stderr)}"
            setting.outcomes.append(Outcome(wall_s=wall_s, failure=failure))
            return Replayed(setting)
        answer = json.loads(Path(folder, "answer.json").read_text(encoding="utf-8"))
        if answer["backend"] == "cpu":
            raise PytracerError(NO_ACCELERATOR)
        if needed_bytes > answer["free_bytes"]:
            raise NoRoomError(
                f"the device here has {size(answer['free_bytes'])} free, less than the "
                f"{size(needed_bytes)} that the replay may need: give a --capacity that it has, or "
                "use a larger device"
            )
        if answer["untraced"] is not None:
            raise PytracerError(f"the replay cannot be recorded here: {answer['untraced']}")
        return _read(setting, recording, Path(folder), answer, wall_s)


def _read(
    setting: Setting, recording: Recording, folder: Path, answer: dict[str, Any], wall_s: float
) -> Replayed:
    """What the process left."""
    requests = recording.requests
    snapshot = load(folder / "trace.pickle")
    trace, done = snapshot.traces[0], np.load(folder / "done.npy")
    history = _without_left(requests, history_of(snapshot), trace, done)
    curve = _curve(history, trace, done)
    failed = answer["failed_request"]
    setting.outcomes.append(
        replace(
            _outcome(history, trace),
            retries=answer["retries"],
            ooms=answer["failed"] + (failed is not None),
            wall_s=wall_s,
            ended_early=failed is not None or _ends_by_oom(requests),
        )
    )
    return Replayed(
        setting=setting,
        curve=curve,
        failed_event=None if failed is None else int(requests.event[failed]),
        failed_bytes=None if failed is None else int(requests.size_bytes[failed]),
        end_reserved_bytes=int(history.levels.reserved_bytes[-1]),
        end_allocated_bytes=int(history.levels.allocated_bytes[-1]),
        free_bytes=answer["free_bytes"],
        limit_bytes=answer["limit_bytes"],
        fitted=answer["fitted"],
        freed_early=answer["freed_early"],
        asked_s=answer["seconds"],
    )


def _peak_bytes(recording: Recording) -> int:
    return int(recording.history.levels.reserved_bytes.max())


def _outcome(history: History, trace: Trace) -> Outcome:
    """What a trace tells."""
    counts = counts_of(trace, is_cpu=False)
    reserved_bytes = int(history.levels.reserved_bytes.max())
    allocated_bytes = int(history.levels.allocated_bytes.max())
    return Outcome(
        peak_reserved_bytes=reserved_bytes,
        peak_allocated_bytes=allocated_bytes,
        fragmentation_bytes=reserved_bytes - allocated_bytes,
        device_allocs=counts.device_allocs,
        retries=counts.retries,
        ooms=counts.ooms,
    )


def _ends_by_oom(requests: Requests) -> bool:
    """Whether nothing is allocated after an allocation that failed."""
    takes = requests.kind[np.isin(requests.kind, (ALLOCATE, FAIL))]
    return bool(takes[-1] == FAIL)


def _events(trace: Trace, done: Column) -> Column:
    """Allocations and frees in the trace; `done` has the request of each, or -1."""
    (events,) = np.nonzero((trace.action == ALLOC) | (trace.action == FREE_COMPLETED))
    assert len(events) == len(done), "the replay's ring was too small"
    return events


def _curve(history: History, trace: Trace, done: Column) -> Curve:
    answered = done >= 0
    entry = _events(trace, done)[answered] + 1
    levels = history.levels
    return Curve(done[answered], levels.reserved_bytes[entry], levels.allocated_bytes[entry])


def _without_left(requests: Requests, history: History, trace: Trace, done: Column) -> History:
    """The history with blocks that the program has left, and whose free waits, as not allocated.

    The replay's allocator has them until their `FREE`.
    """
    is_left = requests.kind == LEAVE
    if not np.any(is_left) or not np.any(done >= 0):
        return history
    left = np.full(int(requests.block.max()) + 1, -1)  # the request that leaves it
    left[requests.block[is_left]] = np.flatnonzero(is_left)
    events, blocks = _events(trace, done), history.blocks
    request = done[np.searchsorted(events, blocks.alloc_event)]
    when = np.where(request >= 0, left[requests.block[request]], -1)
    # From the first event after that to its own free.
    (answered,) = np.nonzero(done >= 0)
    after = answered[np.minimum(np.searchsorted(done[answered], when), len(answered) - 1)]
    begin, end = events[after] + 1, blocks.free_event + 1
    counts = (when >= 0) & (done[after] > when) & (begin < end)
    waiting = np.zeros(len(history.levels.allocated_bytes) + 1, np.int64)
    np.add.at(waiting, begin[counts], blocks.size_bytes[counts])
    np.add.at(waiting, end[counts], -blocks.size_bytes[counts])
    allocated_bytes = history.levels.allocated_bytes - np.cumsum(waiting)[:-1]
    return replace(history, levels=replace(history.levels, allocated_bytes=allocated_bytes))


def _recorded(recording: Recording) -> Setting:
    outcome = _outcome(recording.history, recording.trace)
    return Setting("recorded", recording.settings, [outcome])


def _recorded_curve(recording: Recording) -> Curve:
    requests, levels = recording.requests, recording.history.levels
    is_told = (requests.event >= 0) & np.isin(requests.kind, (ALLOCATE, FREE))
    (request,) = np.nonzero(is_told)
    entry = requests.event[request] + 1
    return Curve(request, levels.reserved_bytes[entry], levels.allocated_bytes[entry])


def _deviation(recording: Recording, recorded: Curve, faithful: Replayed) -> Deviation:
    own = faithful.curve
    assert own is not None
    _, here, there = np.intersect1d(own.request, recorded.request, return_indices=True)
    difference = own.reserved_bytes[here] - recorded.reserved_bytes[there]
    largest = int(np.argmax(np.abs(difference))) if len(difference) else 0
    peak_bytes = _peak_bytes(recording)
    peak_difference = (faithful.setting.outcomes[0].peak_reserved_bytes or 0) - peak_bytes
    is_equal = not np.any(difference)
    missed = 0
    if faithful.failed_event is not None:
        events = recording.requests.event[recorded.request]
        missed = int(np.count_nonzero(events >= faithful.failed_event))
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


def _notes(recording: Recording, faithful: Replayed | None) -> Iterator[str]:
    requests = recording.requests
    if requests.older_blocks:
        freed = f", of which {number(requests.older_freed, 'is', 'are')} freed in it"
        yield (
            f"{number(requests.older_blocks, 'block is', 'blocks are')} older than the trace"
            f"{freed}: they were allocated first, by address"
        )
    if not recording.starts_empty:
        yield "what was cached, and how segments were split, before the trace is not known"
    if requests.pools > 1:
        pools = number(requests.pools - 1, "memory pool")
        yield f"{pools} beside the default, of graphs or MemPools: replayed as MemPools"
    if recording.were_changed:
        yield (
            "segments are of both kinds, so expandable segments were switched while it ran: a "
            "replay has one setting throughout"
        )
    if requests.given_back:
        yield (
            f"memory was given back {number(requests.given_back, 'time')} just before more was "
            "taken, and the file does not tell how much there was: that is taken for "
            "empty_cache(), not for need; give --capacity if you know it"
        )
    if requests.streams > MAX_STREAMS:
        yield (f"it has {requests.streams} streams, of which {MAX_STREAMS} are told apart here")
    waiting = int(np.count_nonzero(requests.kind == LEAVE))
    if waiting:
        yield (
            f"{number(waiting, 'free')} waited for streams: they take effect when they did in the "
            "recording"
        )
    if faithful is not None and faithful.fitted:
        yield (
            f"of the allocations that failed in the recording {faithful.fitted} found "
            "memory in the replay under its own settings: something else than the device's "
            "size was the limit (a memory fraction, other processes); give --capacity"
        )
    if faithful is not None and faithful.failed_event is not None:
        yield "the replay under the recording's own settings ran out of memory, which it did not"
