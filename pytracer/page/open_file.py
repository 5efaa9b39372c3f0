"""A loaded file with its devices and what happened on them, and its short description."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data
from pytracer.analysis.explanation import Explanation, explain_device
from pytracer.analysis.usage import final_sample
from pytracer.page.file_data import capacity_bytes
from pytracer.page.parts import rows_of
from pytracer.reading.metadata import read_number
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
            memory, else the accelerator with the highest peak.
        explanations: The explanation of each device.
    """

    snapshot: Snapshot
    devices: list[DeviceData]
    explanations: list[Explanation]


@dataclass(frozen=True)
class Curve:
    """The usage of a device over its trace; each point is the highest of equally many events."""

    allocated: list[int]
    reserved: list[int]


@dataclass(frozen=True)
class Summary:
    """The short description of a file.

    Attributes:
        path: The file's path.
        rank: The rank of the process; None if unknown.
        pid: The process; None if unknown.
        written_ns: When the file was written; None if unknown.
        explanations: The explanation of each device, as in `OpenFile`.
        events: The number of events of all devices; a block of a device without a history counts
            as an event.
        peak_bytes, peak_reserved_bytes: The peaks of the first device; without a history the usage
            at the end.
        capacity_bytes: What the first device's allocator could reserve; None if unknown.
        ooms: The number of out-of-memory errors of all devices.
        curve: The usage of the first device; empty without a history.
    """

    path: str
    rank: int | None
    pid: int | None
    written_ns: int | None
    explanations: list[Explanation]
    events: int
    peak_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None
    ooms: int
    curve: Curve

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    @property
    def what(self) -> str:
        """What happened on the first device."""
        return printable(self.explanations[0].what) if self.explanations else ""


def open_file(snapshot: Snapshot, explain: Explain = explain_device) -> OpenFile:
    """Replay the devices of a snapshot and explain what happened on them."""
    devices = [device_data(snapshot, device) for device in chosen_devices(snapshot, None)]
    devices.sort(key=_importance)
    return OpenFile(snapshot, devices, [explain(data) for data in devices])


def _importance(data: DeviceData) -> tuple[bool, bool, int, int]:
    """Return a key by which the device that matters is the first."""
    has_oom = bool(np.any(data.trace.action == OOM))
    is_memory_of_host = data.is_cpu is True or data.device == data.snapshot.host_device
    return not has_oom, is_memory_of_host, -_peaks(data)[0], data.device


def _peaks(data: DeviceData) -> tuple[int, int]:
    """Return the peaks of allocated and of reserved bytes."""
    sample, known = final_sample(data.snapshot, data.device, data.boundaries), data.known_usage
    if known is None:
        return sample.allocated_bytes, sample.reserved_bytes
    usage = known.usage
    if data.history is None:  # the sum of the trace, which says nothing about reserved memory
        return int(usage.allocated_bytes.max()), sample.reserved_bytes
    return int(usage.allocated_bytes.max()), int(usage.reserved_bytes.max())


def summarised(file: OpenFile) -> Summary:
    """Return the short description of a file."""
    snapshot, metadata = file.snapshot, file.snapshot.metadata
    first = file.devices[0] if file.devices else None
    peak, peak_reserved = (0, 0) if first is None else _peaks(first)
    curve = Curve([], [])
    if first is not None and first.history is not None:
        usage = first.history.usage
        curve = Curve(_highest(usage.allocated_bytes), _highest(usage.reserved_bytes))
    return Summary(
        path=snapshot.path,
        rank=read_number(metadata, "rank"),
        pid=read_number(metadata, "pid"),
        written_ns=read_number(metadata, "written_ns"),
        explanations=file.explanations,
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
