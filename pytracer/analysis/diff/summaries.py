"""The parts of a snapshot that a comparison needs: little memory, also for a large snapshot."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pytracer.analysis.categories import Categories, Modules
from pytracer.analysis.device_data import chosen_devices, device_data
from pytracer.analysis.diff.changes import Held
from pytracer.analysis.diff.matching import Line, Lines
from pytracer.analysis.held_memory import held_memory
from pytracer.analysis.holders import Site, sites_of
from pytracer.analysis.report import DeviceReport, report_device
from pytracer.analysis.usage import LEAST_POINTS
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.snapshot import Frame, Snapshot

Sites = Mapping[Frame | None, Held]


@dataclass(frozen=True)
class Holders:
    """What held memory at one moment.

    Attributes:
        sites: By call site.
        own_sites: By call site without forward stacks: what the backward pass allocated is where it
            was called.
        phases, categories, modules: By phase, category and module; None if unknown.
    """

    sites: Sites
    own_sites: Sites
    phases: Mapping[str | None, Held] | None
    categories: Mapping[str, Held] | None
    modules: Mapping[str | None, Held] | None


@dataclass(frozen=True)
class DeviceSummary:
    """The parts of a device that a comparison needs.

    Attributes:
        name: The device's name, as in "cuda:0".
        report: The device's report.
        at_peak: What held memory at the peak; without a history, at the end.
        at_end: What held memory at the end.
    """

    name: str
    report: DeviceReport
    at_peak: Holders
    at_end: Holders


@dataclass(frozen=True)
class SnapshotSummary:
    """The parts of a snapshot that a comparison needs.

    Attributes:
        path, metadata, allocator_settings: As in `Snapshot`.
        has_phases: Whether any event has a phase.
        has_forward_stacks: Whether memory of the backward pass has the stacks of forward calls.
        lines: The lines in the stacks, of the files that have call sites.
        devices: The devices to compare.
    """

    path: str
    metadata: FileMetadata
    allocator_settings: Mapping[str, Any]
    has_phases: bool
    has_forward_stacks: bool
    lines: Lines
    devices: Sequence[DeviceSummary]


def summarise(snapshot: Snapshot, device: int | None = None) -> SnapshotSummary:
    """Return the parts of a snapshot that a comparison needs.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device to compare; None for all that were in use.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    devices = [_summarised(snapshot, index) for index in chosen_devices(snapshot, device)]
    return SnapshotSummary(
        path=snapshot.path,
        metadata=snapshot.metadata,
        allocator_settings=snapshot.allocator_settings,
        has_phases=any(np.any(trace.user_metadata) for trace in snapshot.traces),
        has_forward_stacks=bool(snapshot.metadata.forward_stacks) or _has_nodes(snapshot),
        lines=_lines(snapshot, devices),
        devices=devices,
    )


def _has_nodes(snapshot: Snapshot) -> bool:
    return bool(snapshot.stacks.forward.any() or snapshot.stacks.node.any())


def _summarised(snapshot: Snapshot, index: int) -> DeviceSummary:
    data = device_data(snapshot, index)
    found = report_device(data, top=0, points=LEAST_POINTS)
    held = held_memory(data, data.history.peak), held_memory(data, None)
    at_peak, at_end = own_at_peak, own_at_end = [_held(sites_of(each)) for each in held]
    if _has_nodes(snapshot):
        nothing = np.zeros_like(snapshot.stacks.forward)
        stacks = replace(snapshot.stacks, forward=nothing, node=nothing)
        own_at_peak, own_at_end = (_held(sites_of(replace(each, stacks=stacks))) for each in held)
    phases = {
        phase.phase: Held(phase.at_peak_bytes or 0, phase.allocations) for phase in found.phases
    }
    return DeviceSummary(
        name=found.name,
        report=found,
        at_peak=Holders(
            sites=at_peak,
            own_sites=own_at_peak,
            phases=phases,
            categories=_held_by(found.categories, "at_peak", "category"),
            modules=_held_by(found.modules, "at_peak", "module"),
        ),
        at_end=Holders(
            sites=at_end,
            own_sites=own_at_end,
            phases=None,  # a file does not have the phases of the blocks that exist at its end
            categories=_held_by(found.categories, "at_end", "category"),
            modules=_held_by(found.modules, "at_end", "module"),
        ),
    )


def _lines(snapshot: Snapshot, devices: Sequence[DeviceSummary]) -> Lines:
    held = [holders for device in devices for holders in (device.at_peak, device.at_end)]
    sites = (frame for each in held for frame in (*each.sites, *each.own_sites))
    files = {frame.filename for frame in sites if frame is not None}
    stacks, strings = snapshot.stacks, snapshot.stacks.strings
    is_chosen = np.array([string in files for string in strings], bool)[stacks.filename]
    lines: dict[str, set[Line]] = defaultdict(set)
    for filename, name, line in zip(
        *(column[is_chosen].tolist() for column in (stacks.filename, stacks.name, stacks.line)),
        strict=True,
    ):
        lines[strings[filename]].add((line, strings[name]))
    return {filename: frozenset(found) for filename, found in lines.items()}


def _held_by(
    found: Categories | Modules | None, at: Literal["at_peak", "at_end"], name: str
) -> dict[Any, Held] | None:
    """Return what each category or module held at one moment; None if the file does not tell.

    Args:
        found: The categories or modules.
        at: The moment.
        name: The attribute with the name: "category" or "module".
    """
    usages = None if found is None else getattr(found, at)
    if usages is None:
        return None
    return {getattr(usage, name): Held(usage.size_bytes, usage.count) for usage in usages}


def _held(sites: Sequence[Site]) -> dict[Frame | None, Held]:
    return {site.call_site: Held(site.size_bytes, site.count) for site in sites}
