"""What a recording's program would have come to under other settings of the allocator.

What it asked for is asked of the real allocator of the device at hand, under each setting in a
process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pytracer import settings as allocator_settings
from pytracer.comparison import Comparison, Outcome, Setting
from pytracer.errors import PytracerError
from pytracer.reading.counts import counts_of
from pytracer.reading.history import History
from pytracer.reading.history import replay as history_of
from pytracer.reading.reader import load
from pytracer.reading.requests import (
    ALLOCATE,
    ASKED,
    FREE,
    LEAVE,
    Recording,
    recording_of,
)
from pytracer.reading.snapshot import ALLOC, FREE_COMPLETED, Column, Trace
from pytracer.reading.text import number, size

KEPT_VARIABLES = ("PYTRACER_HOOK_DIR", "PYTRACER_BUILD")


@dataclass(frozen=True)
class Deviation:
    """How far the recording's reserved bytes and those of its replay under its own settings differ.

    Attributes:
        requests: How many allocations and frees were compared.
        equal: After how many of them they are equal.
        missed: How many there are beside, which the replay did not get to.
        largest_bytes: The largest difference; more than 0: the replay has more reserved.
        largest_event: The event of the recording where that is; None: they are equal throughout.
        mean_bytes: The mean of the differences' absolute values.
        peak_bytes: The difference of the peaks.
        peak_share: The same, of the recording's peak.
    """

    requests: int
    equal: int
    missed: int
    largest_bytes: int
    largest_event: int | None
    mean_bytes: float
    peak_bytes: int
    peak_share: float


class NoRoomError(PytracerError):
    """The device has less memory than a replay may need."""


class Curve(NamedTuple):
    """How full a device was after each request that was met; int64 columns of equal length."""

    request: Column
    reserved_bytes: Column
    allocated_bytes: Column


@dataclass
class Replayed:
    """How the replay under one setting went.

    Attributes:
        setting: It, with its one outcome.
        curve: Its levels; None: it failed.
        failed_event: The event of the recording whose allocation found no memory, which ended the
            replay; None: there was some for all that had some in the recording.
        failed_bytes: What that asked for.
        end_reserved_bytes, end_allocated_bytes: The levels in the end.
        fitted: For how many allocations that failed in the recording there was memory.
        freed_early: Blocks whose free waited for a stream, which was not waited for, since there
            was no other memory.
        asked_s: How long all requests took.
    """

    setting: Setting
    curve: Curve | None = None
    failed_event: int | None = None
    failed_bytes: int | None = None
    end_reserved_bytes: int | None = None
    end_allocated_bytes: int | None = None
    fitted: int = 0
    freed_early: int = 0
    asked_s: float | None = None

    def about(self) -> dict[str, Any]:
        """Its attributes but the setting, which the comparison has, and the curve."""
        names = {each.name for each in fields(self)} - {"setting", "curve"}
        return {name: getattr(self, name) for name in sorted(names)}

    def why_it_ended(self) -> str | None:
        """If it ended early, in a sentence."""
        if self.failed_event is None:
            return None
        when = f"at event {self.failed_event:,} of the recording"
        if self.failed_event < 0:
            when = "for the blocks that are older than the trace"
        return (
            f"{self.setting.name}: no memory for {size(self.failed_bytes or 0)} {when}, with "
            f"{size(self.end_reserved_bytes or 0)} reserved and "
            f"{size(self.end_allocated_bytes or 0)} allocated."
        )


@dataclass
class Replay:
    """What a recording comes to under each setting.

    Attributes:
        path: The snapshot.
        device: The device in it, as in "cuda:0".
        recorded: What the recording itself tells, as for one of the settings.
        recorded_curve: Its levels.
        requests: How many allocations, frees and other calls there are.
        older_blocks, older_freed: How many blocks are older than the trace, and how many of these
            are freed in it.
        capacity_bytes: How much the allocator could reserve; None: all of the device.
        deviation: How far a replay under the recording's own settings is from the recording, which
            is how much every answer here may be wrong; None: that replay failed.
        replayed: The recording's own settings, then the others.
        notes: What makes it inexact, a sentence each.
    """

    path: str
    device: str
    recorded: Setting
    recorded_curve: Curve
    requests: int
    older_blocks: int
    older_freed: int
    capacity_bytes: int | None
    deviation: Deviation | None
    replayed: list[Replayed]
    notes: list[str]

    @property
    def comparison(self) -> Comparison:
        """For its table, report and plot."""
        about = {
            "path": self.path,
            "device": self.device,
            "capacity_bytes": self.capacity_bytes,
            "requests": self.requests,
            "older_blocks": self.older_blocks,
            "older_freed": self.older_freed,
            "recorded": self.recorded,
            "deviation": self.deviation,
            "replays": [each.about() for each in self.replayed],
        }
        notes = [*self.notes, *filter(None, (each.why_it_ended() for each in self.replayed))]
        return Comparison([each.setting for each in self.replayed], notes, about)

    @property
    def curves(self) -> dict[str, Curve]:
        """The levels of all, the recording's too, by name."""
        curves = {each.setting.name: each.curve for each in self.replayed}
        told = {name: curve for name, curve in curves.items() if curve is not None}
        return {"recorded": self.recorded_curve, **told}

    def fidelity(self) -> str:
        """How near a replay under the recording's own settings is to the recording, in words."""
        deviation = self.deviation
        if deviation is None:
            return "How near a replay is to this recording is not known."
        if deviation.equal == deviation.requests and not deviation.missed:
            return (
                "Replayed under its own settings, reserved bytes are the recording's after each of "
                f"its {number(deviation.requests, 'allocation and free', 'allocations and frees')}."
            )
        largest = ""
        if deviation.largest_event is not None:
            largest = f" (event {deviation.largest_event:,})"
        missed = ""
        if deviation.missed:
            missed = f"It ended with {deviation.missed:,} allocations and frees still to come. "
        return (
            "Replayed under its own settings, reserved bytes differ from the recording's by "
            f"{size(round(deviation.mean_bytes))} on average, {size(abs(deviation.largest_bytes))} "
            f"at most{largest}; the peak by {size(abs(deviation.peak_bytes))} "
            f"({deviation.peak_share:+.1%}). {missed}Every answer may be wrong by as much."
        ).replace("%", " %")


NO_ACCELERATOR = (
    "there is no accelerator here to replay on, torch finds none: it is the real allocator of the "
    "device at hand that answers"
)

OWN = "as recorded"
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
    recording = recording_of(load(os.fspath(path)), device)
    changes = list(dict.fromkeys(settings))
    full = [allocator_settings.merged(recording.settings, each) for each in changes]
    _check(full)
    own = Setting(f"{OWN} ({recording.settings or 'defaults'})", recording.settings)
    others = [Setting(name, each) for name, each in zip(changes, full, strict=True)]

    def under(setting: Setting, limit_bytes: int | None, needed_bytes: int) -> Replayed:
        on_progress(setting.name)
        return _replay_under(setting, recording, limit_bytes, needed_bytes)

    peak_bytes = _peak_bytes(recording)
    notes: list[str] = []
    faithful: Replayed | None = None
    if capacity_bytes is None or capacity_bytes == recording.limit_bytes:
        limit_bytes, needed_bytes = recording.limit_bytes, peak_bytes
    else:
        # How near a replay is shows only where it has as much memory as the recording had.
        limit_bytes = needed_bytes = capacity_bytes
        try:
            faithful = under(Setting(own.name, own.settings), recording.limit_bytes, peak_bytes)
        except NoRoomError as error:
            notes.append(f"how near a replay is to the recording is not known: {error}")
    replayed = [under(each, limit_bytes, needed_bytes) for each in (own, *others)]
    if not notes:
        faithful = faithful or replayed[0]
    deviation = None
    if faithful is not None and faithful.curve is not None:
        deviation = _deviation(recording, faithful)
    return Replay(
        path=os.fspath(path),
        device=recording.name,
        recorded=_recorded(recording),
        recorded_curve=_recorded_curve(recording),
        requests=len(recording.requests),
        older_blocks=recording.requests.older_blocks,
        older_freed=recording.requests.older_freed,
        capacity_bytes=limit_bytes,
        deviation=deviation,
        replayed=replayed,
        notes=[*_notes(recording, faithful), *notes],
    )


def _check(settings: Sequence[str]) -> None:
    """Has the allocator try all of them, so that a wrong one is told before anything is done."""
    with ThreadPoolExecutor() as pool:
        if None in pool.map(allocator_settings.check_in_new_process, settings):
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
    names = allocator_settings.variables(setting.settings)
    with tempfile.TemporaryDirectory(prefix="pytracer-replay-") as folder:
        columns = {name: getattr(requests, name) for name in ASKED}
        np.savez(Path(folder, "requests.npz"), **columns)
        command = ["-m", "pytracer.replay_process", folder]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *command, "" if limit_bytes is None else str(limit_bytes)],
            env={**kept, **dict.fromkeys(names, setting.settings)},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        wall_s = time.monotonic() - began
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [""]
            failure = f"its process ended with {done.returncode}: {said[-1]}"
            setting.outcomes.append(Outcome(wall_s=wall_s, failure=failure))
            return Replayed(setting)
        answer = json.loads(Path(folder, "answer.json").read_text(encoding="utf-8"))
        if answer["backend"] == "cpu":
            raise PytracerError(NO_ACCELERATOR)
        if answer["untraced"] is not None:
            raise PytracerError(f"the replay cannot be recorded here: {answer['untraced']}")
        if needed_bytes > answer["free_bytes"]:
            raise NoRoomError(
                f"the device here has {size(answer['free_bytes'])} free, less than the "
                f"{size(needed_bytes)} that the replay may need: give a --capacity that it has, or "
                "use a larger device"
            )
        return _read(setting, recording, Path(folder), answer, wall_s)


def _read(
    setting: Setting, recording: Recording, folder: Path, answer: dict[str, Any], wall_s: float
) -> Replayed:
    """What the process left."""
    requests = recording.requests
    snapshot = load(folder / "trace.pickle")
    history = history_of(snapshot)
    curve = _curve(history, snapshot.traces[0], np.load(folder / "done.npy"))
    failed = answer["failed_request"]
    ooms = answer["failed"] + (failed is not None)
    outcome = _outcome(history, snapshot.traces[0])
    setting.outcomes.append(
        replace(outcome, ooms=ooms, wall_s=wall_s, ended_early=failed is not None)
    )
    return Replayed(
        setting=setting,
        curve=curve,
        failed_event=None if failed is None else int(requests.event[failed]),
        failed_bytes=None if failed is None else int(requests.size_bytes[failed]),
        end_reserved_bytes=int(history.levels.reserved_bytes[-1]),
        end_allocated_bytes=int(history.levels.allocated_bytes[-1]),
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


def _curve(history: History, trace: Trace, done: Column) -> Curve:
    """`done`: the request of each allocation and free in the trace."""
    (events,) = np.nonzero((trace.action == ALLOC) | (trace.action == FREE_COMPLETED))
    assert len(events) == len(done), "the replay's ring was too small"
    answered = done >= 0
    entry = events[answered] + 1
    return Curve(
        done[answered],
        history.levels.reserved_bytes[entry],
        history.levels.allocated_bytes[entry],
    )


def _recorded(recording: Recording) -> Setting:
    outcome = _outcome(recording.history, recording.trace)
    return Setting("recorded", recording.settings, [outcome])


def _recorded_curve(recording: Recording) -> Curve:
    requests, levels = recording.requests, recording.history.levels
    is_told = (requests.event >= 0) & np.isin(requests.kind, (ALLOCATE, FREE))
    (request,) = np.nonzero(is_told)
    entry = requests.event[request] + 1
    return Curve(request, levels.reserved_bytes[entry], levels.allocated_bytes[entry])


def _deviation(recording: Recording, faithful: Replayed) -> Deviation:
    own, recorded = faithful.curve, _recorded_curve(recording)
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
