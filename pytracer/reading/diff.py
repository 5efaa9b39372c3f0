"""What differs between two snapshots, or between the snapshots of two runs.

Each device is compared at its own peak of allocated bytes, and so on both sides at the end if one
of them has no history.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pytracer.reading.about import only_phase
from pytracer.reading.devices import device_name
from pytracer.reading.diff_changes import (
    Held,
    Pair,
    PhaseChange,
    SiteChange,
    phase_changes,
    site_changes,
)
from pytracer.reading.diff_options import Fact, Option, differing
from pytracer.reading.moments import LEAST_POINTS, Moment
from pytracer.reading.sites import sites_in_the_end
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.reading.stats import DeviceReport, stats

At = Literal["peak", "end"]

SCHEMA_VERSION = 1
"""Of the JSON: greater, if keys go or change their meaning. Keys may be added without."""

_OF_MOMENT = (
    "requested_bytes",
    "allocated_bytes",
    "active_bytes",
    "reserved_bytes",
    "fragmentation_bytes",
    "rounding_bytes",
    "inactive_split_bytes",
    "largest_free_bytes",
    "segments",
)
_COUNTS = ("allocs", "frees", "device_allocs", "device_frees", "ooms", "retries")


@dataclass(frozen=True)
class Amount:
    """A number of a device, before and after; None: it is not known."""

    before: int | None
    after: int | None
    delta: int | None

    @classmethod
    def of(cls, before: int | None, after: int | None) -> "Amount":
        """With the delta that follows."""
        return cls(before, after, None if before is None or after is None else after - before)


@dataclass(frozen=True)
class DeviceDifference:
    """A device of the baseline, and one of the new snapshot.

    Attributes:
        before, after: Their names, as in "cuda:0".
        at: "peak", of allocated bytes, each its own; "end": when the snapshots were taken.
        reasons: Why not at the peak; [] if it is.
        notes: What cannot be told, in words: why a peak is not certain, why there are no sites or
            phases.
        is_certain: False: one of the peaks is that of what is known, as `notes` say.
        amounts: By name: the levels at that moment, the highest reserved, and counts of events.
        sites: Those that hold something, the largest difference first; [] if one side alone has
            stacks.
        phases: Likewise; [] if `at` is "end", or one file alone tells of phases.
    """

    before: str
    after: str
    at: At
    reasons: list[str]
    notes: list[str]
    is_certain: bool
    amounts: dict[str, Amount]
    sites: list[SiteChange]
    phases: list[PhaseChange]


@dataclass(frozen=True)
class Difference:
    """What differs between two snapshots.

    Attributes:
        baseline, new: Their paths.
        devices: The devices that both have.
        only_baseline, only_new: The names of those that one has alone.
        metadata: What differs in the allocator's settings, in versions, options and the user's
            metadata.
    """

    baseline: str
    new: str
    devices: list[DeviceDifference]
    only_baseline: list[str]
    only_new: list[str]
    metadata: list[Fact]


@dataclass(frozen=True)
class FileDifference:
    """A device of a pair of files.

    Attributes:
        place: What the files are of, as in "step 3, rank 0".
        baseline, new: Their paths.
        before, after: The device's names.
        at: As in `DeviceDifference`.
        before_bytes, after_bytes, delta_bytes: Allocated then.
    """

    place: str
    baseline: str
    new: str
    before: str
    after: str
    at: At
    before_bytes: int
    after_bytes: int
    delta_bytes: int


@dataclass(frozen=True)
class DirectoryDifference:
    """What differs between the snapshots of two directories.

    Attributes:
        baseline, new: The directories.
        files: Each pair of files, and of their devices.
        pairs: How many pairs of files there are.
        only_baseline, only_new: Files without a match, and devices of a pair without one.
        sites, phases: Over all pairs that can tell, without files of one phase if there are others:
            means, and the pair with the largest delta.
        metadata: As in `Difference`.
        reasons: Why some were compared at the end.
        notes: What cannot be told, in words.
        errors: Why pairs of files could not be compared.
    """

    baseline: str
    new: str
    files: list[FileDifference]
    pairs: int
    only_baseline: list[str]
    only_new: list[str]
    sites: list[SiteChange]
    phases: list[PhaseChange]
    metadata: list[Fact]
    reasons: list[str]
    notes: list[str]
    errors: list[str]


@dataclass(frozen=True)
class DeviceSummary:
    """What a comparison needs of a device."""

    name: str
    report: DeviceReport
    at_peak: Mapping[Frame | None, Held]
    at_end: Mapping[Frame | None, Held]
    phases: Mapping[str | None, Held]


@dataclass(frozen=True)
class Summary:
    """What a comparison needs of a snapshot: little, also of a large one.

    Attributes:
        path, about, allocator_settings: As in `Snapshot`.
        only_phase: The phase of a file that has no other events (`discrete`); else None.
        has_phases: Whether any event has a phase.
        devices: Those that are compared.
    """

    path: str
    about: Mapping[str, Any]
    allocator_settings: Mapping[str, Any]
    only_phase: str | None
    has_phases: bool
    devices: Sequence[DeviceSummary]


def summarise(snapshot: Snapshot, device: int | None = None) -> Summary:
    """What a comparison needs of a snapshot.

    Args:
        snapshot: As `load` returns it.
        device: The index of the only device that is compared; None: all that were in use.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    report = stats(snapshot, device, points=LEAST_POINTS)
    return Summary(
        path=snapshot.path,
        about=snapshot.about,
        allocator_settings=snapshot.allocator_settings,
        only_phase=only_phase(snapshot),
        has_phases=any(np.any(trace.user_metadata) for trace in snapshot.traces),
        devices=[
            DeviceSummary(
                name=device_name(snapshot, each.device),
                report=each,
                at_peak={s.call_site: Held(s.size_bytes, s.count) for s in each.sites},
                at_end={
                    s.call_site: Held(s.size_bytes, s.count)
                    for s in sites_in_the_end(snapshot, each.device)
                },
                phases={p.phase: Held(p.at_peak_bytes or 0, p.allocations) for p in each.phases},
            )
            for each in report.devices
        ],
    )


def diff(baseline: Snapshot, new: Snapshot, device: int | None = None) -> Difference:
    """Compares two snapshots.

    Args:
        baseline: As `load` returns it.
        new: The other one; of the same device or of another kind.
        device: The index of the only device that is compared; None: all that were in use. The CPU
            is compared with the CPU. If each snapshot has one accelerator these two are compared,
            else those of the same index.

    Raises:
        PytracerError: One of them has no such device.
    """
    return diff_summaries(summarise(baseline, device), summarise(new, device))


def diff_summaries(baseline: Summary, new: Summary) -> Difference:
    """Compares two snapshots, given their summaries."""
    compared, only = _compared(baseline, new)
    return Difference(
        baseline=baseline.path,
        new=new.path,
        devices=[_device_difference(each) for each in compared],
        only_baseline=only[0],
        only_new=only[1],
        metadata=[Fact(*fact, pairs=1) for fact in _options(baseline, new)],
    )


def diff_directories(
    baseline: str,
    new: str,
    pairs: Iterable[tuple[str, Summary, Summary]],
    only_baseline: Iterable[str] = (),
    only_new: Iterable[str] = (),
    errors: Iterable[str] = (),
) -> DirectoryDifference:
    """Compares two runs.

    Args:
        baseline, new: Their directories.
        pairs: Of each two files that were matched what they are of, and their summaries.
        only_baseline, only_new: The files that were not.
        errors: Why others that were could not be read.
    """
    pairs = list(pairs)
    files: list[FileDifference] = []
    only = [*only_baseline], [*only_new]
    told: list[_Compared] = []  # what sites and phases are of
    # The file of a step has the blocks of its phases too: a mean over both would count them twice.
    has_whole = not all(_is_of_phase(*pair) for _, *pair in pairs)
    metadata: Counter[Option] = Counter()
    reasons: dict[str, None] = {}
    notes: Counter[str] = Counter()
    for place, one, other in pairs:
        metadata.update(_options(one, other))
        compared, alone = _compared(one, other, place)
        for known, path, names in zip(only, (one.path, other.path), alone, strict=True):
            known += (f"{path}, {name}" for name in names)
        if not has_whole or not _is_of_phase(one, other):
            told += compared
        reasons |= dict.fromkeys(reason for each in compared for reason in each.reasons)
        notes.update({note for each in compared for note in each.notes})
        files += (_file_difference(one, other, place, each) for each in compared)
    said = [
        note if count == len(pairs) else f"{note} ({count} of {len(pairs)} pairs)"
        for note, count in notes.most_common()
    ]
    if has_whole and any(_is_of_phase(*pair) for _, *pair in pairs):
        said.append(
            "Call sites and phases are those of files of whole steps: files of one phase have the "
            "same blocks once more"
        )
    return DirectoryDifference(
        baseline=baseline,
        new=new,
        files=files,
        pairs=len(pairs),
        only_baseline=only[0],
        only_new=only[1],
        sites=site_changes([each.sites for each in told if each.sites is not None]),
        phases=phase_changes([each.phases for each in told if each.phases is not None]),
        metadata=[Fact(*fact, pairs=count) for fact, count in metadata.most_common()],
        reasons=list(reasons),
        notes=said,
        errors=list(errors),
    )


@dataclass(frozen=True)
class _Compared:
    """Two devices, and what both tell.

    Attributes:
        before, after: The devices.
        reasons, notes: As in `DeviceDifference`.
        sites, phases: None: they do not tell both.
    """

    before: DeviceSummary
    after: DeviceSummary
    reasons: list[str]
    notes: list[str]
    sites: Pair[Frame | None] | None
    phases: Pair[str | None] | None


def _compared(
    baseline: Summary, new: Summary, place: str = ""
) -> tuple[list[_Compared], tuple[list[str], list[str]]]:
    """The devices that both have, and the names of the others."""
    ones, others = ({each.report.device: each for each in s.devices} for s in (baseline, new))
    pairs = []
    for is_cpu in (False, True):
        one, other = (
            {i: each for i, each in devices.items() if bool(each.report.is_cpu) == is_cpu}
            for devices in (ones, others)
        )
        alone = len(one) == len(other) == 1
        pairs += [*zip(one, other, strict=True)] if alone else [(i, i) for i in one if i in other]
    if len(ones) == len(others) == 1:  # of whatever kinds
        pairs = [*zip(ones, others, strict=True)]
    compared = [_of_devices(baseline, new, ones[i], others[k], place) for i, k in pairs]
    return compared, (
        [each.name for i, each in ones.items() if i not in {pair[0] for pair in pairs}],
        [each.name for i, each in others.items() if i not in {pair[1] for pair in pairs}],
    )


def _of_devices(
    baseline: Summary, new: Summary, before: DeviceSummary, after: DeviceSummary, place: str
) -> _Compared:
    reasons = _why_end(before, after)
    notes = []
    held = (before.at_end, after.at_end) if reasons else (before.at_peak, after.at_peak)
    sites: Pair[Frame | None] | None = Pair(place, *held)
    # A snapshot does not tell the phases of the blocks that are in it at the end.
    phases = None if reasons else Pair(place, before.phases, after.phases)
    for side, file, device in (("baseline", baseline, before), ("new one", new, after)):
        if not reasons and file.only_phase is not None:
            notes.append(
                f"The {side} is of one phase: what other threads did outside of it is not in the "
                "file, so that its peak may have been another"
            )
        elif not reasons and not device.report.is_peak_certain:
            notes.append(f"The peak of the {side} is of what is known: it may have been higher")
    one, other = (each.keys() == {None} for each in held)
    if one != other and all(held):
        sites = None
        side = "baseline" if one else "new one"
        notes.append(f"The {side} has no stacks of what it held: call sites are not compared")
    if phases is not None and baseline.has_phases != new.has_phases:
        phases = None
        side = "new one" if baseline.has_phases else "baseline"
        notes.append(f"The {side} tells of no phases: they are not compared")
    return _Compared(before, after, reasons, notes, sites, phases)


def _is_of_phase(baseline: Summary, new: Summary) -> bool:
    return (baseline.only_phase, new.only_phase) != (None, None)


def _device_difference(compared: _Compared) -> DeviceDifference:
    before, after, reasons = compared.before, compared.after, compared.reasons
    return DeviceDifference(
        before=before.name,
        after=after.name,
        at="end" if reasons else "peak",
        reasons=reasons,
        notes=compared.notes,
        is_certain=bool(reasons)
        or (before.report.is_peak_certain and after.report.is_peak_certain),
        amounts=_amounts(before, after, reasons),
        sites=[] if compared.sites is None else site_changes([compared.sites]),
        phases=[] if compared.phases is None else phase_changes([compared.phases]),
    )


def _file_difference(
    baseline: Summary, new: Summary, place: str, compared: _Compared
) -> FileDifference:
    before, after = compared.before, compared.after
    was, now = (_moment(each, compared.reasons).allocated_bytes for each in (before, after))
    return FileDifference(
        place=place,
        baseline=baseline.path,
        new=new.path,
        before=before.name,
        after=after.name,
        at="end" if compared.reasons else "peak",
        before_bytes=was,
        after_bytes=now,
        delta_bytes=now - was,
    )


def _why_end(before: DeviceSummary, after: DeviceSummary) -> list[str]:
    """Why these are compared at the end and not at their peaks; [] if they are not."""
    reasons = (
        each.report.contradiction or f"{each.name} has no trace in it"
        for each in (before, after)
        if each.report.peak_allocated is None
    )
    return [*dict.fromkeys(reasons)]


def _moment(device: DeviceSummary, why_end: list[str]) -> Moment:
    return (None if why_end else device.report.peak_allocated) or device.report.end


def _amounts(before: DeviceSummary, after: DeviceSummary, why_end: list[str]) -> dict[str, Amount]:
    def numbers(device: DeviceSummary) -> dict[str, int | None]:
        moment, counts = _moment(device, why_end), device.report.counts
        highest = device.report.peak_reserved
        has_trace = device.report.contradiction is not None or highest is not None
        return {
            **{name: getattr(moment, name) for name in _OF_MOMENT},
            "peak_reserved_bytes": None if why_end or highest is None else highest.reserved_bytes,
            **{name: getattr(counts, name) if has_trace else None for name in _COUNTS},
        }

    one, other = numbers(before), numbers(after)
    return {name: Amount.of(one[name], other[name]) for name in one}


def _options(before: Summary, after: Summary) -> Iterator[Option]:
    yield from differing(before.about, after.about, "pytracer")
    settings = before.allocator_settings, after.allocator_settings
    yield from differing(*settings, "allocator_settings", "allocator_settings.")
