"""Read the numbers of a run from the snapshots that it wrote."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pytracer.analysis.history import History, replay, unknown_history
from pytracer.analysis.ooms import limit_bytes_of
from pytracer.analysis.usage import peak_unallocated, unallocated_after
from pytracer.errors import PytracerError
from pytracer.reading.files import find
from pytracer.reading.metadata import Statistics
from pytracer.reading.reader import load
from pytracer.reading.snapshot import OOM, TAKES_MEMORY, Snapshot, Trace
from pytracer.reading.steps import annotations

_COUNTS = ("device_allocs", "retries", "ooms")
_PEAKS = ("peak_reserved_bytes", "peak_allocated_bytes")
_OOM = ("oom_unallocated_bytes", "oom_reserved_bytes", "oom_requested_bytes")
_ENVIRONMENT = ("host", "torch", "torch_npu", "python", "backends")

Process = tuple[str | None, int | None]  # the host and the pid of a process, as its files have them


@dataclass
class _Device:
    """What the files of one process have about one device."""

    # The largest value of each number in any file.
    numbers: dict[str, int] = field(default_factory=dict)
    written_ns: int = -1
    is_complete: bool = False  # whether the trace of the last file has every event of the process
    oom_ns: int = -1
    # The unallocated, reserved and requested bytes at the last out-of-memory error; None: no file
    # has the trace of one.
    oom: tuple[int, int, int] | None = None
    limit_bytes: int | None = None  # the least limit of any file

    def add(self, snapshot: Snapshot, index: int, statistics: Statistics) -> None:
        trace, history = snapshot.traces[index], _history(snapshot, index)
        # The program may have reset its statistics; the trace may still show larger numbers.
        traced = _traced(trace, history)
        for name in (*_PEAKS, *_COUNTS):
            if (value := getattr(statistics, name)) is not None:
                self._add(name, max(value, traced.get(name, 0)))
        written_ns = snapshot.metadata.written_ns or 0
        if written_ns >= self.written_ns:
            self.written_ns = written_ns
            self.is_complete = history.is_known and _is_complete(snapshot, index, history)
        if not history.is_known:
            return
        if (peak := peak_unallocated(history, trace)) is not None:
            self._add("peak_unallocated_bytes", peak)
        limits = self.limit_bytes, limit_bytes_of(snapshot, index, history)
        self.limit_bytes = min((limit for limit in limits if limit is not None), default=None)
        ooms = np.flatnonzero(trace.action == OOM)
        if len(ooms) and written_ns >= self.oom_ns:
            last = int(ooms[-1])
            unallocated = unallocated_after(history, last)
            if unallocated is not None:
                reserved = int(history.usage.reserved_bytes[last + 1])
                self.oom_ns = written_ns
                self.oom = unallocated, reserved, int(trace.size_bytes[last])

    def _add(self, name: str, value: int) -> None:
        self.numbers[name] = max(self.numbers.get(name, 0), value)


@dataclass
class RunFiles:
    """What the snapshots of a run have."""

    paths: list[Path] = field(default_factory=list)  # the snapshots that could be read
    # Why other files could not be read, and why devices were not recorded.
    problems: list[str] = field(default_factory=list)
    # The numbers of the run's `Outcome`; {}: no file is from a process that used an accelerator.
    numbers: dict[str, Any] = field(default_factory=dict)
    # The allocators' settings when the processes ended, as far as known.
    settings: set[str] = field(default_factory=set)
    environment: dict[str, Any] | None = None


def read_run(
    directory: Path, on_snapshot: Callable[[Snapshot], object] = lambda _: None
) -> RunFiles:
    """Read all snapshots in a directory, and call `on_snapshot` with each.

    Problems of files are returned, and not raised.
    """
    files = RunFiles()
    devices: dict[tuple[Process, int], _Device] = defaultdict(_Device)
    last: dict[Process, tuple[int, float | None, str | None]] = {}
    found: list[Path] = []
    with contextlib.suppress(PytracerError):  # the directory has no snapshot
        found = find([directory])
    for path in found:
        try:
            snapshot = load(path)
        except PytracerError as error:
            files.problems.append(str(error))
            continue
        on_snapshot(snapshot)
        metadata = snapshot.metadata
        files.paths.append(path)
        files.problems += [metadata.untraced] if metadata.untraced else []
        process = metadata.host, metadata.pid
        for index in range(len(snapshot.traces)):
            statistics = metadata.device(index).statistics
            if statistics is not None:  # only accelerators have them
                files.environment = files.environment or _environment(snapshot)
                devices[process, index].add(snapshot, index, statistics)
        written = metadata.written_ns or 0
        if process not in last or last[process][0] <= written:
            last[process] = written, _step_us(snapshot), snapshot.settings_text
    files.numbers = _largest(devices.values())
    steps_us = [step_us for _, step_us, _ in last.values() if step_us is not None]
    if files.numbers and steps_us:
        files.numbers["step_us"] = max(steps_us)
    files.settings = {settings for _, _, settings in last.values() if settings is not None}
    return files


def _history(snapshot: Snapshot, device: int) -> History:
    """Return the history of a device; unknown if the file lacks events that changed its usage."""
    if snapshot.metadata.only_phase is not None:
        return unknown_history()
    try:
        return replay(snapshot, device)
    except PytracerError:
        return unknown_history()


def _traced(trace: Trace, history: History) -> dict[str, int]:
    """Return the numbers that a trace shows, each a lower bound."""
    numbers = {
        "device_allocs": int(np.isin(trace.action, TAKES_MEMORY).sum()),
        "ooms": int((trace.action == OOM).sum()),
    }
    if history.is_known:
        numbers["peak_reserved_bytes"] = int(history.usage.reserved_bytes.max())
        numbers["peak_allocated_bytes"] = int(history.usage.allocated_bytes.max())
    return numbers


def _is_complete(snapshot: Snapshot, device: int, history: History) -> bool:
    overwritten = snapshot.metadata.device(device).overwritten
    begins_empty = int(history.usage.reserved_bytes[0]) == 0
    return overwritten == 0 and begins_empty and history.exact_from == 0


def _largest(devices: Collection[_Device]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for device in devices:
        for name, value in device.numbers.items():
            numbers[name] = max(numbers.get(name, 0), value)
    if ooms := [device.oom for device in devices if device.oom is not None]:
        numbers.update(zip(_OOM, max(ooms), strict=True))  # all of the same out-of-memory
    if limits := [device.limit_bytes for device in devices if device.limit_bytes is not None]:
        numbers["limit_bytes"] = max(limits)
    if "peak_unallocated_bytes" in numbers and not all(device.is_complete for device in devices):
        numbers["lower_bounds"] = ["peak_unallocated_bytes"]
    return numbers


def _step_us(snapshot: Snapshot) -> float | None:
    """Return the median time of the complete steps, without the first.

    The first step may include warm-up, or may have begun before the recording.
    """
    begun: dict[str, int] = {}
    durations: list[int] = []
    for annotation in annotations(snapshot):
        if not re.fullmatch(r"step \d+", annotation.name):
            continue
        if annotation.stage == "START":
            begun[annotation.name] = annotation.time_us
        elif annotation.name in begun:
            durations.append(annotation.time_us - begun.pop(annotation.name))
    return median(durations[1:]) if len(durations) > 1 else None


def _environment(snapshot: Snapshot) -> dict[str, Any]:
    metadata = snapshot.metadata
    totals = [metadata.device(index).total_bytes for index in range(len(snapshot.traces))]
    return {
        "pytracer": metadata.version,
        **{name: getattr(metadata, name) for name in _ENVIRONMENT},
        "device_bytes": [total for total in totals if total is not None],
    }
