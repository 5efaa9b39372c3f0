"""What differs between two snapshots, or between the snapshots of two runs.

Each device is compared at its own peak of allocated bytes, and so on both sides at the end if one
of them has no history.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
from pytracer.reading.moments import Moment
from pytracer.reading.sites import sites_in_the_end
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.reading.stats import DeviceReport, stats

At = Literal["peak", "end"]

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
        is_certain: False: in one of them even more may have been allocated, when it is not known.
        amounts: By name: the levels at that moment, the highest reserved, and counts of events.
        sites: Those that hold something, the largest difference first.
        phases: Likewise; [] if `at` is "end".
    """

    before: str
    after: str
    at: At
    reasons: list[str]
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
        only_baseline, only_new: Files without a match, and devices of a pair without one.
        sites, phases: Over all pairs of files: means, and the pair with the largest delta.
        metadata: As in `Difference`.
        reasons: Why some were compared at the end.
    """

    baseline: str
    new: str
    files: list[FileDifference]
    only_baseline: list[str]
    only_new: list[str]
    sites: list[SiteChange]
    phases: list[PhaseChange]
    metadata: list[Fact]
    reasons: list[str]


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
    """What a comparison needs of a snapshot: little, also of a large one."""

    path: str
    about: Mapping[str, Any]
    allocator_settings: Mapping[str, Any]
    devices: Sequence[DeviceSummary]


def summarise(snapshot: Snapshot, device: int | None = None) -> Summary:
    """What a comparison needs of a snapshot.

    Args:
        snapshot: As `load` returns it.
        device: The index of the only device that is compared; None: all that were in use.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    report = stats(snapshot, device, points=4)
    return Summary(
        path=snapshot.path,
        about=snapshot.about,
        allocator_settings=snapshot.allocator_settings,
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
            if device is not None or each.end.segments or each.counts.allocs or each.counts.ooms
        ],
    )


def diff(baseline: Snapshot, new: Snapshot, device: int | None = None) -> Difference:
    """Compares two snapshots.

    Args:
        baseline: As `load` returns it.
        new: The other one; of the same device or of another kind.
        device: The index of the only device that is compared; None: all that were in use. If each
            snapshot has one alone these two are compared, else those of the same index, and the
            CPU with the CPU.

    Raises:
        PytracerError: One of them has no such device.
    """
    return diff_summaries(summarise(baseline, device), summarise(new, device))


def diff_summaries(baseline: Summary, new: Summary) -> Difference:
    """Compares two snapshots, given their summaries."""
    pairs, only = _paired(baseline, new)
    return Difference(
        baseline=baseline.path,
        new=new.path,
        devices=[_device_difference(*pair) for pair in pairs],
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
) -> DirectoryDifference:
    """Compares two runs.

    Args:
        baseline, new: Their directories.
        pairs: Of each two files that were matched what they are of, and their summaries.
        only_baseline, only_new: The files that were not.
    """
    files: list[FileDifference] = []
    only = [*only_baseline], [*only_new]
    sites: list[Pair[Frame | None]] = []
    phases: list[Pair[str | None]] = []
    metadata: Counter[Option] = Counter()
    reasons: dict[str, None] = {}
    for place, one, other in pairs:
        metadata.update(_options(one, other))
        devices, alone = _paired(one, other)
        for known, path, names in zip(only, (one.path, other.path), alone, strict=True):
            known += (f"{path}, {name}" for name in names)
        for before, after in devices:
            why_end = _why_end(before, after)
            reasons |= dict.fromkeys(why_end)
            sites.append(_sites(before, after, place))
            if not why_end:
                phases.append(Pair(place, before.phases, after.phases))
            was, now = (_moment(each, why_end).allocated_bytes for each in (before, after))
            files.append(
                FileDifference(
                    place=place,
                    baseline=one.path,
                    new=other.path,
                    before=before.name,
                    after=after.name,
                    at="end" if why_end else "peak",
                    before_bytes=was,
                    after_bytes=now,
                    delta_bytes=now - was,
                )
            )
    return DirectoryDifference(
        baseline=baseline,
        new=new,
        files=files,
        only_baseline=only[0],
        only_new=only[1],
        sites=site_changes(sites),
        phases=phase_changes(phases),
        metadata=[Fact(*fact, pairs=count) for fact, count in metadata.most_common()],
        reasons=list(reasons),
    )


def _paired(
    baseline: Summary, new: Summary
) -> tuple[list[tuple[DeviceSummary, DeviceSummary]], tuple[list[str], list[str]]]:
    """The devices to compare, and the names of the others."""
    one, other = baseline.devices, new.devices
    if len(one) == len(other) == 1:
        return [(one[0], other[0])], ([], [])

    def key(device: DeviceSummary) -> int:
        return -1 if device.report.is_cpu else device.report.device

    keys = {key(each): each for each in one}, {key(each): each for each in other}
    pairs = [(keys[0][each], keys[1][each]) for each in keys[0] if each in keys[1]]
    names = ([keys[i][each].name for each in keys[i] if each not in keys[1 - i]] for i in (0, 1))
    return pairs, (next(names), next(names))


def _device_difference(before: DeviceSummary, after: DeviceSummary) -> DeviceDifference:
    why_end = _why_end(before, after)
    return DeviceDifference(
        before=before.name,
        after=after.name,
        at="end" if why_end else "peak",
        reasons=why_end,
        is_certain=bool(why_end)
        or (before.report.is_peak_certain and after.report.is_peak_certain),
        amounts=_amounts(before, after, why_end),
        sites=site_changes([_sites(before, after)]),
        # A snapshot does not tell the phases of the blocks that are in it at the end.
        phases=[] if why_end else phase_changes([Pair("", before.phases, after.phases)]),
    )


def _why_end(before: DeviceSummary, after: DeviceSummary) -> list[str]:
    """Why these are compared at the end and not at their peaks; [] if they are not."""
    return [
        each.report.contradiction or f"{each.name} has no trace in it"
        for each in (before, after)
        if each.report.peak_allocated is None
    ]


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


def _sites(before: DeviceSummary, after: DeviceSummary, place: str = "") -> Pair[Frame | None]:
    if _why_end(before, after):
        return Pair(place, before.at_end, after.at_end)
    return Pair(place, before.at_peak, after.at_peak)


def _options(before: Summary, after: Summary) -> Iterator[Option]:
    yield from differing(before.about, after.about, "pytracer")
    settings = before.allocator_settings, after.allocator_settings
    yield from differing(*settings, "allocator_settings", "allocator_settings.")
