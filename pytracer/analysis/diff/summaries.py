"""The parts of a snapshot that a comparison needs: little memory, also for a large snapshot."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytracer.analysis.blocks import held_at
from pytracer.analysis.call_sites import UNKNOWN_NODE, frame_at, frames_matching, texts_matching
from pytracer.analysis.device_data import chosen_devices, device_data
from pytracer.analysis.diff.changes import Held
from pytracer.analysis.diff.matching import Line, Lines
from pytracer.analysis.groups import Group
from pytracer.analysis.report import DeviceReport, report_device
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.snapshot import Snapshot

BY = ("line", "category", "module", "phase")
"""What recordings are compared by."""


@dataclass(frozen=True)
class DeviceSummary:
    """The parts of a device that a comparison needs."""

    report: DeviceReport
    # What held memory at the "peak", if it is known, and at the "end": by those of `BY` that are
    # known, and by "own_line": the lines without stacks of forward calls, so that what the backward
    # pass allocated is where it was called. A file does not have the phases of blocks at its end.
    held: Mapping[str, Mapping[str, Mapping[Any, Held]]]


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
    report, stacks = report_device(data), snapshot.stacks
    found: dict[str, dict[str, dict[Any, Held]]] = defaultdict(dict)
    for held in report.held:
        found[held.moment.name][held.by] = {
            _key(group, held.by): Held(group.size_bytes, group.count) for group in held.groups
        }
    for moment, by in found.items():
        by["own_line"] = by["line"]
        if stacks.forward.any() or stacks.node.any():
            blocks = held_at(data, data.history.peak if moment == "peak" else None)
            by["own_line"] = {
                frame_at(stacks, site): Held(each.size_bytes, each.blocks)
                for each in blocks.group("own_site")
                for site in each.key
            }
    if "peak" in found:
        found["peak"]["phase"] = {
            phase.phase: Held(phase.at_peak_bytes or 0, phase.allocations)
            for phase in report.phases
        }
    return DeviceSummary(report, found)


def _key(group: Group, by: str) -> Any:
    return next(iter(group.frames), None) if by == "line" else getattr(group, by)


def _lines(snapshot: Snapshot, devices: Sequence[DeviceSummary]) -> Lines:
    held = [by for device in devices for by in device.held.values()]
    lines_held = (frame for by in held for frame in (*by["line"], *by["own_line"]))
    files = {frame.filename for frame in lines_held if frame is not None}
    stacks, strings = snapshot.stacks, snapshot.stacks.strings
    is_chosen = frames_matching(files.__contains__, stacks, "filename")
    columns = (column[is_chosen] for column in (stacks.filename, stacks.line, stacks.name))
    lines: dict[str, set[Line]] = defaultdict(set)
    for filename, line, name in zip(*(column.tolist() for column in columns), strict=True):
        lines[strings[filename]].add((line, strings[name]))
    return {filename: frozenset(found) for filename, found in lines.items()}
