"""What the snapshots tell that a traced run has left."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.about import about_device, annotations, told_number, told_settings
from pytracer.reading.files import find
from pytracer.reading.history import replay
from pytracer.reading.reader import load
from pytracer.reading.snapshot import OOM, SEGMENT_ALLOC, SEGMENT_MAP, Snapshot

_COUNTS = ("device_allocs", "retries", "ooms")
_PEAKS = ("peak_reserved_bytes", "peak_allocated_bytes")
_ABOUT = ("host", "torch", "torch_npu", "python", "backends")

Process = tuple[Any, Any]
"""Its host and pid, as its files tell them."""


@dataclass
class RunFiles:
    """What they tell.

    Attributes:
        paths: The snapshots that could be read.
        problems: Why others could not, and why devices were not recorded.
        numbers: Of the run's `Outcome`; {}: no file tells of an accelerator.
        settings: The allocators' settings when the processes ended, as far as the files tell.
        environment: What ran.
    """

    paths: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    settings: set[str] = field(default_factory=set)
    environment: dict[str, Any] | None = None


def read_run(directory: Path) -> RunFiles:
    """Reads all snapshots in a directory. What is wrong with one is told, not raised."""
    told = RunFiles()
    devices: dict[tuple[Process, int], dict[str, int]] = defaultdict(dict)
    last: dict[Process, tuple[int, float | None, str | None]] = {}
    for path in _paths(directory):
        try:
            snapshot = load(path)
        except PytracerError as error:
            told.problems.append(str(error))
            continue
        about = snapshot.about
        told.paths.append(path)
        told.problems += [str(about["untraced"])] if about.get("untraced") else []
        process = str(about.get("host")), str(about.get("pid"))
        for index, numbers in _devices(snapshot):
            told.environment = told.environment or _environment(snapshot)
            of_device = devices[process, index]
            for name, value in numbers.items():
                of_device[name] = max(of_device.get(name, 0), value)
        settings = told_settings(snapshot)
        written = told_number(about, "written_ns") or 0
        if process not in last or last[process][0] <= written:
            last[process] = written, _step_us(snapshot), settings
    told.numbers = _most(devices.values())
    steps_us = [step_us for _, step_us, _ in last.values() if step_us is not None]
    if told.numbers and steps_us:
        told.numbers["step_us"] = max(steps_us)
    told.settings = {settings for _, _, settings in last.values() if settings is not None}
    return told


def _paths(directory: Path) -> list[Path]:
    try:
        return find([directory])
    except PytracerError:  # there is none
        return []


def _devices(snapshot: Snapshot) -> Iterator[tuple[int, dict[str, int]]]:
    """The accelerators of a file, and what it tells of each.

    A program may have reset the allocator's statistics; the trace knows what it still has.
    """
    for index in range(len(snapshot.traces)):
        statistics = about_device(snapshot, index).get("statistics")
        if isinstance(statistics, dict):
            own = {name: told_number(statistics, name) for name in (*_PEAKS, *_COUNTS)}
            known = {name: value for name, value in own.items() if value is not None}
            traced = _traced(snapshot, index)
            yield index, {name: max(value, traced.get(name, 0)) for name, value in known.items()}


def _traced(snapshot: Snapshot, device: int) -> dict[str, int]:
    """What the trace shows, which is the least there was."""
    action = snapshot.traces[device].action
    found = {
        "device_allocs": int(np.isin(action, (SEGMENT_ALLOC, SEGMENT_MAP)).sum()),
        "ooms": int((action == OOM).sum()),
    }
    try:
        levels = replay(snapshot, device).levels
    except PytracerError:
        return found
    found["peak_reserved_bytes"] = int(levels.reserved_bytes.max())
    found["peak_allocated_bytes"] = int(levels.allocated_bytes.max())
    return found


def _most(devices: Any) -> dict[str, Any]:
    """Each number of the device that has most."""
    most: dict[str, Any] = {}
    for numbers in devices:
        if all(name in numbers for name in _PEAKS):
            reserved, allocated = (numbers[name] for name in _PEAKS)
            numbers["fragmentation_bytes"] = reserved - allocated
        for name, value in numbers.items():
            most[name] = max(most.get(name, 0), value)
    return most


def _step_us(snapshot: Snapshot) -> float | None:
    """The median time of the whole steps but the first, which may have warmed up or be cut."""
    begun: dict[str, int] = {}
    took: list[int] = []
    for each in annotations(snapshot):
        if not re.fullmatch(r"step \d+", each.name):
            continue
        if each.stage == "START":
            begun[each.name] = each.time_us
        elif each.name in begun:
            took.append(each.time_us - begun.pop(each.name))
    return median(took[1:]) if len(took) > 1 else None


def _environment(snapshot: Snapshot) -> dict[str, Any]:
    devices = (about_device(snapshot, index) for index in range(len(snapshot.traces)))
    total = [told_number(device, "total_bytes") for device in devices]
    return {
        "pytracer": snapshot.about.get("version"),
        **{name: snapshot.about.get(name) for name in _ABOUT},
        "device_bytes": [each for each in total if each is not None],
    }
