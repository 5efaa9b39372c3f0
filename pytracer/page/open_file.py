"""A loaded file with what happened on its devices, its short description, and its verdict."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytracer.analysis.answer import one_line
from pytracer.analysis.answer_of_files import AnsweredFile, answered_file
from pytracer.analysis.answer_words import answer_of
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import Explanation, explain_device
from pytracer.analysis.usage import final_sample
from pytracer.page.file_data import capacity_bytes
from pytracer.page.parts import rows_of
from pytracer.reading.snapshot import OOM, Column, Snapshot
from pytracer.text import sentence

CURVE_POINTS = 300  # the most points of each curve of a file's short description


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file in memory: its devices, and what happened on them.

    The device that matters is the first in both: that which ran out of memory, else one that leaks,
    else the accelerator with the highest peak.
    """

    snapshot: Snapshot
    devices: list[DeviceData]
    file: AnsweredFile


def open_file(
    snapshot: Snapshot, explain: Callable[[DeviceData], Explanation] = explain_device
) -> OpenFile:
    """Replay the devices of a snapshot and explain what happened on them."""
    devices = {index: device_data(snapshot, index) for index in chosen_devices(snapshot, None)}
    file = answered_file(snapshot, map(explain, devices.values()))
    return OpenFile(snapshot, [devices[each.device] for each in file.devices], file)


@dataclass(frozen=True)
class Summary:
    """The short description of a file."""

    file: AnsweredFile  # the process that wrote the file, and the explanation of each device
    # The number of events of all devices; a block of a device without a history counts as an event.
    events: int
    ooms: int  # the number of out-of-memory errors of all devices
    # Of the first device: "peak_bytes" and "peak_reserved_bytes", without a history those at the
    # end; "capacity_bytes", what the allocator could reserve, None if unknown.
    figures: dict[str, int | None]
    # The usage of the first device over its trace, by "allocated" and "reserved"; each point is the
    # highest of equally many events. Without a history there are no points.
    curve: dict[str, list[int]]

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.file.path).name


def summarised(file: OpenFile) -> Summary:
    """Return the short description of a file."""
    figures = {"peak_bytes": 0, "peak_reserved_bytes": 0, "capacity_bytes": None}
    curve: dict[str, list[int]] = {"allocated": [], "reserved": []}
    if file.devices:
        data = file.devices[0]
        usage, history, end = data.history.usage, data.history, final_sample(data)
        allocated, reserved = end.allocated_bytes, end.reserved_bytes
        if history.is_known:
            allocated, reserved = int(usage.allocated_bytes.max()), int(usage.reserved_bytes.max())
            points = min(len(usage.allocated_bytes), CURVE_POINTS)
            for name in curve:
                curve[name] = highest(getattr(usage, f"{name}_bytes"), points).tolist()
        found = allocated, reserved, capacity_bytes(data)
        figures = dict(zip(figures, found, strict=True))
    return Summary(
        file=file.file,
        events=sum(map(rows_of, file.devices)),
        ooms=sum(int(np.count_nonzero(data.trace.action == OOM)) for data in file.devices),
        figures=figures,
        curve=curve,
    )


def highest(column: Column, parts: int) -> Column:
    """Return the most of each of equally long parts; a column of fewer values repeats some."""
    begins = np.linspace(0, len(column), parts, endpoint=False).astype(np.int64)
    found: Column = np.maximum.reduceat(column, begins)
    return found


@dataclass(frozen=True)
class Verdict:
    """The first lines of a page: what happened, the figures, and what to run next in a shell."""

    heading: str
    lines: list[str]
    commands: list[str]
    is_leak: bool = False


def verdict_of(file: AnsweredFile, *, is_saved: bool = True) -> Verdict:
    """Return the answer of `pytracer show` about the device that matters.

    Without `is_saved`, commands cannot read the file.
    """
    if not file.devices:
        return Verdict(f"{sentence(file.why_empty)}.", [], [])
    answer = answer_of(file.devices[0], is_saved=is_saved)
    lines = [
        f"{line.role.capitalize()}: {one_line(line)}"
        for line in answer.lines
        if not line.is_command or line.role == "do"
    ]
    commands = [line.text for line in answer.lines if line.is_command]
    heading = f"{answer.verdict} ({answer.where})"
    return Verdict(heading, lines, commands, is_leak=answer.kind == "leak")


def compared(verdict: Verdict, files: Sequence[Summary], difference: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run and its baseline: the difference, then the verdict on the run."""
    run, baseline = (shlex.quote(each.file.path) for each in files)
    return Verdict(
        heading=difference["sentence"],
        lines=[f"{files[0].name}: {verdict.heading}", *verdict.lines],
        commands=[f"pytracer diff {baseline} {run}", *verdict.commands],
    )
