"""The parts of a snapshot that a comparison needs: little memory, also for a large snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytracer.analysis.call_sites import Site, sites_at_end
from pytracer.analysis.categories import Categories
from pytracer.analysis.diff.changes import Held
from pytracer.analysis.modules import Modules
from pytracer.analysis.report import DeviceReport, stats
from pytracer.analysis.usage import LEAST_POINTS
from pytracer.reading.metadata import device_name, only_phase
from pytracer.reading.snapshot import Frame, Snapshot


@dataclass(frozen=True)
class DeviceSummary:
    """The parts of a device that a comparison needs.

    Attributes:
        name: The device's name, as in "cuda:0".
        report: The device's report.
        at_peak, at_end: What each call site held at the peak, and at the end.
        phases: What each phase held at the peak.
        categories_at_peak, categories_at_end: What each category held at the peak, and at the end;
            None if unknown.
        modules_at_peak, modules_at_end: The same for modules.
    """

    name: str
    report: DeviceReport
    at_peak: Mapping[Frame | None, Held]
    at_end: Mapping[Frame | None, Held]
    phases: Mapping[str | None, Held]
    categories_at_peak: Mapping[str, Held] | None
    categories_at_end: Mapping[str, Held] | None
    modules_at_peak: Mapping[str | None, Held] | None
    modules_at_end: Mapping[str | None, Held] | None


@dataclass(frozen=True)
class SnapshotSummary:
    """The parts of a snapshot that a comparison needs.

    Attributes:
        path, metadata, allocator_settings: As in `Snapshot`.
        only_phase: The phase of a file with the events of one phase only (`discrete`); else None.
        has_phases: Whether any event has a phase.
        devices: The devices to compare.
    """

    path: str
    metadata: Mapping[str, Any]
    allocator_settings: Mapping[str, Any]
    only_phase: str | None
    has_phases: bool
    devices: Sequence[DeviceSummary]


def summarise(snapshot: Snapshot, device: int | None = None) -> SnapshotSummary:
    """Return the parts of a snapshot that a comparison needs.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device to compare; None for all that were in use.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    report = stats(snapshot, device, points=LEAST_POINTS)
    return SnapshotSummary(
        path=snapshot.path,
        metadata=snapshot.metadata,
        allocator_settings=snapshot.allocator_settings,
        only_phase=only_phase(snapshot),
        has_phases=any(np.any(trace.user_metadata) for trace in snapshot.traces),
        devices=[
            DeviceSummary(
                name=device_name(snapshot, found.device),
                report=found,
                at_peak=_held(found.sites),
                at_end=_held(sites_at_end(snapshot, found.device)),
                phases={
                    phase.phase: Held(phase.at_peak_bytes or 0, phase.allocations)
                    for phase in found.phases
                },
                categories_at_peak=_held_by(found.categories, "at_peak", "category"),
                categories_at_end=_held_by(found.categories, "at_end", "category"),
                modules_at_peak=_held_by(found.modules, "at_peak", "module"),
                modules_at_end=_held_by(found.modules, "at_end", "module"),
            )
            for found in report.devices
        ],
    )


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
