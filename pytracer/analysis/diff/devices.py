"""The comparison of the devices of two snapshots."""

from collections.abc import Mapping
from dataclasses import dataclass

from pytracer.analysis.diff.changes import (
    Held,
    Key,
    Pair,
    category_changes,
    module_changes,
    phase_changes,
    site_changes,
)
from pytracer.analysis.diff.differences import Amount, DeviceDifference, FileDifference
from pytracer.analysis.diff.summaries import DeviceSummary, SnapshotSummary
from pytracer.analysis.usage import UsageSample
from pytracer.reading.snapshot import Frame
from pytracer.text import size

_OF_BLOCKS = ("requested_bytes", "allocated_bytes", "active_bytes")
_USAGE = (
    *_OF_BLOCKS,
    "reserved_bytes",
    "fragmentation_bytes",
    "rounding_bytes",
    "inactive_split_bytes",
    "largest_free_bytes",
    "segments",
)
_COUNTS = ("allocs", "frees", "device_allocs", "device_frees", "ooms", "retries")


@dataclass(frozen=True)
class DevicePair:
    """Two devices that are compared, and the data that both have.

    Attributes:
        before, after: The devices.
        reasons, notes: As in `DeviceDifference`; `notes` without those about `uncertain`.
        uncertain: The sides whose peaks may be higher than shown, and by how many bytes at most.
        sites, phases, categories, modules: What call sites, phases, categories and modules hold;
            None if only one side has them.
    """

    before: DeviceSummary
    after: DeviceSummary
    reasons: list[str]
    notes: list[str]
    uncertain: list[tuple[str, int]]
    sites: Pair[Frame | None] | None
    phases: Pair[str | None] | None
    categories: Pair[str] | None
    modules: Pair[str | None] | None


def pair_devices(
    baseline: SnapshotSummary, new: SnapshotSummary, place: str = ""
) -> tuple[list[DevicePair], tuple[list[str], list[str]]]:
    """Pair the devices of two snapshots.

    The CPU is paired with the CPU. If each snapshot has one accelerator these two are paired,
    otherwise accelerators of the same index. If each snapshot has one device these two are paired.

    Args:
        baseline, new: The snapshots.
        place: What the snapshots are of, as in "step 3, rank 0".

    Returns:
        The pairs, and the names of the devices that only the baseline and only the new one has.
    """
    before, after = (
        {device.report.device: device for device in summary.devices} for summary in (baseline, new)
    )
    pairs: list[tuple[int, int]] = []
    for is_cpu in (False, True):
        first, second = (
            [i for i, device in devices.items() if bool(device.report.is_cpu) == is_cpu]
            for devices in (before, after)
        )
        if len(first) == len(second) == 1:
            pairs.append((first[0], second[0]))
        else:
            pairs += [(i, i) for i in first if i in second]
    if len(before) == len(after) == 1:
        pairs = [*zip(before, after, strict=True)]
    paired = [_pair(baseline, new, before[i], after[k], place) for i, k in pairs]
    return paired, (
        [device.name for i, device in before.items() if i not in {pair[0] for pair in pairs}],
        [device.name for i, device in after.items() if i not in {pair[1] for pair in pairs}],
    )


def device_difference(pair: DevicePair) -> DeviceDifference:
    """Return the difference between two devices."""
    return DeviceDifference(
        before=pair.before.name,
        after=pair.after.name,
        at="end" if pair.reasons else "peak",
        reasons=pair.reasons,
        notes=[*(uncertain_note(side, more) for side, more in pair.uncertain), *pair.notes],
        is_certain=bool(pair.reasons)
        or (pair.before.report.is_peak_certain and pair.after.report.is_peak_certain),
        amounts=_amounts(pair),
        sites=[] if pair.sites is None else site_changes([pair.sites]),
        phases=[] if pair.phases is None else phase_changes([pair.phases]),
        categories=[] if pair.categories is None else category_changes([pair.categories]),
        modules=[] if pair.modules is None else module_changes([pair.modules]),
    )


def file_difference(
    baseline: SnapshotSummary, new: SnapshotSummary, place: str, pair: DevicePair
) -> FileDifference:
    """Return the difference between two devices of two matched files."""
    before_bytes, after_bytes = (
        _sample(device, pair.reasons).allocated_bytes for device in (pair.before, pair.after)
    )
    return FileDifference(
        place=place,
        baseline=baseline.path,
        new=new.path,
        before=pair.before.name,
        after=pair.after.name,
        at="end" if pair.reasons else "peak",
        before_bytes=before_bytes,
        after_bytes=after_bytes,
        delta_bytes=after_bytes - before_bytes,
    )


def uncertain_note(side: str, more_bytes: int) -> str:
    """Return the sentence about a peak that may be higher than shown."""
    return (
        f"The peak of the {side} may be up to {size(more_bytes)} higher: the exact sizes of some "
        "blocks that are older than the file are unknown"
    )


def _pair(
    baseline: SnapshotSummary,
    new: SnapshotSummary,
    before: DeviceSummary,
    after: DeviceSummary,
    place: str,
) -> DevicePair:
    reasons = _reasons_for_end(before, after)
    notes = []
    uncertain: list[tuple[str, int]] = []
    held = (before.at_end, after.at_end) if reasons else (before.at_peak, after.at_peak)
    sites: Pair[Frame | None] | None = Pair(place, *held)
    # A snapshot does not have the phases of the blocks that exist at the end.
    phases = None if reasons else Pair(place, before.phases, after.phases)
    for side, file, device in (("baseline", baseline, before), ("new one", new, after)):
        if not reasons and file.only_phase is not None:
            notes.append(
                f"The {side} is of one phase: it lacks the allocations of other threads in other "
                "phases, so its peak may be too low or too high"
            )
        elif not reasons and device.report.contradiction is not None:
            notes.append(f"The {side}: {device.report.contradiction}")
        elif not reasons and (more := _peak_uncertainty(device)):
            uncertain.append((side, more))
    lacks_before, lacks_after = (by_site.keys() == {None} for by_site in held)
    if lacks_before != lacks_after and all(held):
        sites = None
        side = "baseline" if lacks_before else "new one"
        notes.append(f"The {side} has no stacks: call sites are not compared")
    if phases is not None and baseline.has_phases != new.has_phases:
        phases = None
        side = "new one" if baseline.has_phases else "baseline"
        notes.append(f"The {side} has no phases: phases are not compared")
    return DevicePair(
        before,
        after,
        reasons,
        notes,
        uncertain,
        sites,
        phases,
        _both(place, before.categories_at_end, after.categories_at_end)
        if reasons
        else _both(place, before.categories_at_peak, after.categories_at_peak),
        _both(place, before.modules_at_end, after.modules_at_end)
        if reasons
        else _both(place, before.modules_at_peak, after.modules_at_peak),
    )


def _both(
    place: str, before: Mapping[Key, Held] | None, after: Mapping[Key, Held] | None
) -> Pair[Key] | None:
    """Return what both sides hold; None if one side does not have it."""
    return None if before is None or after is None else Pair(place, before, after)


def _peak_uncertainty(device: DeviceSummary) -> int:
    """Return how much higher the peak may be than shown; 0 if the shown digits are right."""
    peak, most = device.report.peak_allocated, device.report.peak_most_bytes
    if peak is None or most is None or size(most) == size(peak.allocated_bytes):
        return 0
    return most - peak.allocated_bytes


def _reasons_for_end(before: DeviceSummary, after: DeviceSummary) -> list[str]:
    """Return why the devices are compared at the end; [] if they are compared at their peaks."""
    reasons = (
        device.report.contradiction or f"{device.name} has no trace in it"
        for device in (before, after)
        if device.report.peak_allocated is None
    )
    return [*dict.fromkeys(reasons)]


def _sample(device: DeviceSummary, reasons: list[str]) -> UsageSample:
    return (None if reasons else device.report.peak_allocated) or device.report.end


def _amounts(pair: DevicePair) -> dict[str, Amount]:
    def numbers(device: DeviceSummary) -> dict[str, int | None]:
        sample, counts = _sample(device, pair.reasons), device.report.counts
        highest = device.report.peak_reserved
        # The sum of a trace alone says nothing about reserved memory.
        is_sum = not pair.reasons and highest is None
        known = _OF_BLOCKS if is_sum else _USAGE
        has_trace = device.report.contradiction is not None or highest is not None
        return {
            **{name: getattr(sample, name) if name in known else None for name in _USAGE},
            "peak_reserved_bytes": None
            if pair.reasons or highest is None
            else highest.reserved_bytes,
            **{name: getattr(counts, name) if has_trace else None for name in _COUNTS},
        }

    before, after = numbers(pair.before), numbers(pair.after)
    return {name: Amount.between(before[name], after[name]) for name in before}
