"""The parts of a snapshot that a comparison needs: little memory, also for a large snapshot."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytracer.analysis.blocks import Blocks, held_at
from pytracer.analysis.call_sites import UNKNOWN_NODE, frame_at, frames_matching, texts_matching
from pytracer.analysis.device_data import chosen_devices, device_data
from pytracer.analysis.diff.changes import Held
from pytracer.analysis.diff.matching import Line, Lines
from pytracer.analysis.report import DeviceReport, report_device
from pytracer.analysis.usage import LEAST_POINTS
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.snapshot import Snapshot

Holders = Mapping[str, Mapping[Any, Held]]
"""What held memory at one moment: "sites" by call site, "own_sites" without forward stacks (what
the backward pass allocated is where it was called), and "phases", "categories" and "modules" if
they are known. A file does not have the phases of the blocks that exist at its end."""


@dataclass(frozen=True)
class DeviceSummary:
    """The parts of a device that a comparison needs."""

    report: DeviceReport
    at_peak: Holders  # what held memory at the peak; without a history, at the end
    at_end: Holders


@dataclass(frozen=True)
class SnapshotSummary:
    """The parts of a snapshot that a comparison needs."""

    # As in `Snapshot`.
    path: str
    metadata: FileMetadata
    allocator_settings: Mapping[str, Any]
    has_phases: bool  # whether any event has a phase
    has_forward_stacks: bool  # whether memory of the backward pass has the stacks of forward calls
    lines: Lines  # the lines in the stacks, of the files that have call sites
    devices: Sequence[DeviceSummary]


def summarise(snapshot: Snapshot, device: int | None = None) -> SnapshotSummary:
    """Return the parts of a snapshot that a comparison needs, as `compare_snapshots` takes it.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    devices = [_summarised(snapshot, index) for index in chosen_devices(snapshot, device)]
    return SnapshotSummary(
        path=snapshot.path,
        metadata=snapshot.metadata,
        allocator_settings=snapshot.allocator_settings,
        has_phases=any(np.any(trace.user_metadata) for trace in snapshot.traces),
        has_forward_stacks=_has_forward_stacks(snapshot),
        lines=_lines(snapshot, devices),
        devices=devices,
    )


def _has_forward_stacks(snapshot: Snapshot) -> bool:
    """Return whether more is known of the nodes that ran than that there was one."""
    stacks = snapshot.stacks
    is_known = texts_matching(
        lambda node: node not in ("", UNKNOWN_NODE), stacks.strings, stacks.node
    )
    return bool(snapshot.metadata.forward_stacks or stacks.forward.any() or is_known.any())


def _summarised(snapshot: Snapshot, index: int) -> DeviceSummary:
    data = device_data(snapshot, index)
    report = report_device(data, top=0, points=LEAST_POINTS)
    phases = {
        phase.phase: Held(phase.at_peak_bytes or 0, phase.allocations) for phase in report.phases
    }
    peak, end = held_at(data, data.history.peak), held_at(data, None)
    at_peak = _holders(peak, report, is_known=data.history.is_known)
    at_end = _holders(end, report, is_known=True)
    return DeviceSummary(report, {**at_peak, "phases": phases}, at_end)


def _holders(held: Blocks, report: DeviceReport, *, is_known: bool) -> Holders:
    """Return what held memory; without categories and modules unless they are known then."""
    stacks = held.stacks
    has_nodes = stacks.forward.any() or stacks.node.any()
    sites, own = (
        {frame_at(stacks, site): each for site, each in _by(held, column).items()}
        for column in ("site", "own_site" if has_nodes else "site")
    )
    found = {"sites": sites, "own_sites": own}
    if is_known and report.categories is not None:
        found["categories"] = _by(held, "category")
    if is_known and report.modules is not None:
        found["modules"] = _by(held, "module")
    return found


def _by(held: Blocks, column: str) -> dict[Any, Held]:
    return {found.key[0]: Held(found.size_bytes, found.blocks) for found in held.group(column)}


def _lines(snapshot: Snapshot, devices: Sequence[DeviceSummary]) -> Lines:
    held = [holders for device in devices for holders in (device.at_peak, device.at_end)]
    sites = (frame for each in held for frame in (*each["sites"], *each["own_sites"]))
    files = {frame.filename for frame in sites if frame is not None}
    stacks, strings = snapshot.stacks, snapshot.stacks.strings
    is_chosen = frames_matching(files.__contains__, stacks, "filename")
    columns = (column[is_chosen] for column in (stacks.filename, stacks.line, stacks.name))
    lines: dict[str, set[Line]] = defaultdict(set)
    for filename, line, name in zip(*(column.tolist() for column in columns), strict=True):
        lines[strings[filename]].add((line, strings[name]))
    return {filename: frozenset(found) for filename, found in lines.items()}
