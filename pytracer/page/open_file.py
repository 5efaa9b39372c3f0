"""A loaded file with its devices and what happened on them, and its short description."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytracer.analysis.answered_files import AnsweredFile, answered_file, importance
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import Explanation, explain_device
from pytracer.analysis.usage import final_sample
from pytracer.page.file_data import capacity_bytes
from pytracer.page.parts import rows_of
from pytracer.reading.snapshot import OOM, Column, Snapshot
from pytracer.text import printable

CURVE_POINTS = 300
"""The most points of each curve of a file's short description."""

Explain = Callable[[DeviceData], Explanation]


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file in memory.

    Attributes:
        snapshot: The snapshot.
        devices: The devices that were used, the one that matters first: that which ran out of
            memory, else one that leaks, else the accelerator with the highest peak.
        explanations: The explanation of each device.
    """

    snapshot: Snapshot
    devices: list[DeviceData]
    explanations: list[Explanation]


@dataclass(frozen=True)
class Summary:
    """The short description of a file.

    Attributes:
        path: The file's path.
        file: The process that wrote the file, and the explanation of each device.
        events: The number of events of all devices; a block of a device without a history counts
            as an event.
        peak_bytes, peak_reserved_bytes: The peaks of the first device; without a history the usage
            at the end.
        capacity_bytes: What the first device's allocator could reserve; None if unknown.
        ooms: The number of out-of-memory errors of all devices.
        curve: The usage of the first device over its trace, by "allocated" and "reserved"; each
            point is the highest of equally many events. Without a history there are no points.
    """

    path: str
    file: AnsweredFile
    events: int
    peak_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None
    ooms: int
    curve: dict[str, list[int]]

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    @property
    def what(self) -> str:
        """What happened on the first device."""
        answers = self.file.answers()
        return printable(answers[0].headline) if answers else ""


def open_file(snapshot: Snapshot, explain: Explain = explain_device) -> OpenFile:
    """Replay the devices of a snapshot and explain what happened on them."""
    devices = [device_data(snapshot, device) for device in chosen_devices(snapshot, None)]
    explained = [(data, explain(data)) for data in devices]
    explained.sort(key=lambda pair: importance(pair[1]))
    return OpenFile(snapshot, [data for data, _ in explained], [each for _, each in explained])


def _peaks(data: DeviceData) -> tuple[int, int]:
    """Return the peaks of allocated and of reserved bytes."""
    history, end = data.history, final_sample(data)
    allocated = history.usage.allocated_bytes.max() if history.is_known else end.allocated_bytes
    # The sum of a trace says nothing about reserved memory.
    reserved = history.usage.reserved_bytes.max() if history.is_replayed else end.reserved_bytes
    return int(allocated), int(reserved)


def summarised(file: OpenFile) -> Summary:
    """Return the short description of a file."""
    snapshot = file.snapshot
    first = file.devices[0] if file.devices else None
    peak, peak_reserved = (0, 0) if first is None else _peaks(first)
    curve: dict[str, list[int]] = {"allocated": [], "reserved": []}
    if first is not None and first.history.is_replayed:
        curve = {name: _highest(getattr(first.history.usage, f"{name}_bytes")) for name in curve}
    return Summary(
        path=snapshot.path,
        file=answered_file(snapshot, file.explanations),
        events=sum(map(rows_of, file.devices)),
        peak_bytes=peak,
        peak_reserved_bytes=peak_reserved,
        capacity_bytes=None if first is None else capacity_bytes(first),
        ooms=sum(int(np.count_nonzero(data.trace.action == OOM)) for data in file.devices),
        curve=curve,
    )


def _highest(column: Column) -> list[int]:
    begins = np.linspace(0, len(column), min(len(column), CURVE_POINTS), endpoint=False)
    highest: list[int] = np.maximum.reduceat(column, begins.astype(np.int64)).tolist()
    return highest
