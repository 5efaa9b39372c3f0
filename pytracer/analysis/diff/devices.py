"""The comparison of the devices of two snapshots, or of many pairs of snapshots."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pytracer.analysis.diff.changes import Change, Held, Pair, changes
from pytracer.analysis.diff.differences import Amount, DeviceDifference
from pytracer.analysis.diff.matching import Line, Lines, match_sites
from pytracer.analysis.diff.summaries import BY, DeviceSummary, SnapshotSummary
from pytracer.analysis.usage import AMOUNTS, UsageSample

_COUNTS = ("allocs", "frees", "device_allocs", "device_frees", "ooms", "retries")


@dataclass(frozen=True)
class DevicePair:
    """Two devices that are compared, and the data that both have.

    Attributes:
        place: What the files are of, as in "step 3, rank 0".
        reasons, notes: As in `DeviceDifference`.
        held: What holds memory by each of `BY` that both have.
    """

    place: str
    baseline: SnapshotSummary
    new: SnapshotSummary
    before: DeviceSummary
    after: DeviceSummary
    reasons: list[str]
    notes: list[str]
    held: Mapping[str, Pair]


def pair_devices(
    baseline: SnapshotSummary, new: SnapshotSummary, place: str = ""
) -> tuple[list[DevicePair], tuple[list[str], list[str]]]:
    """Pair the devices of two snapshots.

    The CPU is paired with the CPU. If each snapshot has one accelerator these two are paired,
    otherwise accelerators of the same index. If each snapshot has one device these two are paired.

    Args:
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
        [each.report.name for i, each in before.items() if i not in {pair[0] for pair in pairs}],
        [each.report.name for i, each in after.items() if i not in {pair[1] for pair in pairs}],
    )


def device_difference(pairs: Sequence[DevicePair]) -> DeviceDifference:
    """Return the difference between the devices of one kind, in one or several pairs of files."""
    match = partial(
        match_sites,
        lines_before=_lines(pair.baseline for pair in pairs),
        lines_after=_lines(pair.new for pair in pairs),
    )
    return DeviceDifference(
        before=_name([pair.before.report.name for pair in pairs]),
        after=_name([pair.after.report.name for pair in pairs]),
        pairs=len(pairs),
        at="end" if all(pair.reasons for pair in pairs) else "peak",
        reasons=list(dict.fromkeys(reason for pair in pairs for reason in pair.reasons)),
        notes=_notes(pairs),
        amounts=_amounts(pairs),
        changes={
            by: changes(
                [pair.held[by] for pair in pairs if by in pair.held],
                match if by == "line" else None,
            )
            for by in BY
        },
    )


def file_changes(pairs: Sequence[DevicePair]) -> list[Change]:
    """Return how much each pair of files differs, the largest difference first."""
    per_file = Counter(pair.place for pair in pairs)
    before: dict[str, Held] = {}
    after: dict[str, Held] = {}
    for pair in pairs:
        name = pair.place
        name += f", {pair.after.report.name}" if per_file[pair.place] > 1 else ""
        name += " (at the end)" if pair.reasons else ""
        for held, device in ((before, pair.before), (after, pair.after)):
            allocated = _sample(device, pair.reasons).allocated_bytes
            held[name] = Held(allocated, device.report.counts.allocs)
    return changes([Pair("", before, after)])


def kind_of(name: str) -> str:
    """Return the kind of a device, as in "cuda" of "cuda:1"."""
    return re.split(r":| \d+$", name)[0]


def _name(names: Sequence[str]) -> str:
    return names[0] if len({*names}) == 1 else kind_of(names[0])


def _lines(files: Iterable[SnapshotSummary]) -> Lines:
    lines: dict[str, frozenset[Line]] = {}
    for file in files:
        for filename, found in file.lines.items():
            if found is not lines.get(filename):
                lines[filename] = lines.get(filename, frozenset()) | found
    return lines


def _notes(pairs: Sequence[DevicePair]) -> list[str]:
    """Return what is unknown as sentences, each with the number of pairs if it is not of all."""
    notes = Counter(note for pair in pairs for note in pair.notes)
    return [
        note if count == len(pairs) else f"{note} ({count} of {len(pairs)} pairs)"
        for note, count in notes.most_common()
    ]


def _pair(
    baseline: SnapshotSummary,
    new: SnapshotSummary,
    before: DeviceSummary,
    after: DeviceSummary,
    place: str,
) -> DevicePair:
    reasons = _reasons_for_end(before, after)
    notes = []
    for side, file, device in (("baseline", baseline, before), ("new one", new, after)):
        if not reasons and file.metadata.only_phase is not None:
            notes.append(
                f"The {side} covers one phase. Threads in other phases are left out, so its peak "
                "may be too low or too high"
            )
        elif not reasons and not device.report.is_peak_certain:
            notes.append(
                f"The peak of the {side} may be higher: some blocks from before its first event "
                "have no exact size"
            )
    moment = "end" if reasons else "peak"
    old, held = (dict(device.held[moment]) for device in (before, after))
    if baseline.has_forward_stacks != new.has_forward_stacks:
        old["line"], held["line"] = old["own_line"], held["own_line"]
        # Options show it, if both files have them.
        if not baseline.metadata.is_pytracers or not new.metadata.is_pytracers:
            side = _lacking(baseline.has_forward_stacks)
            notes.append(
                f"The {side} has no stacks of forward calls: call sites are compared without them"
            )
    pairs = {by: Pair(place, old[by], held[by]) for by in BY if by in old and by in held}
    lacks_before, lacks_after = (side["line"].keys() == {None} for side in (old, held))
    if lacks_before != lacks_after and old["line"] and held["line"]:
        del pairs["line"]
        notes.append(f"The {_lacking(lacks_after)} has no stacks: call sites are not compared")
    if "phase" in pairs and baseline.has_phases != new.has_phases:
        del pairs["phase"]
        notes.append(f"The {_lacking(baseline.has_phases)} has no phases: phases are not compared")
    return DevicePair(place, baseline, new, before, after, reasons, notes, pairs)


def _lacking(has_before: bool) -> str:
    """Return the name of the side that lacks what the other side has."""
    return "new one" if has_before else "baseline"


def _reasons_for_end(before: DeviceSummary, after: DeviceSummary) -> list[str]:
    """Return why the devices are compared at the end; [] if they are compared at their peaks."""
    reasons = (
        device.report.contradiction or f"no trace of {device.report.name}"
        for device in (before, after)
        if device.report.peak_allocated is None
    )
    return [*dict.fromkeys(reasons)]


def _sample(device: DeviceSummary, reasons: list[str]) -> UsageSample:
    return (None if reasons else device.report.peak_allocated) or device.report.end


def _amounts(pairs: Sequence[DevicePair]) -> dict[str, Amount]:
    """Return the amounts of all pairs in which they are known on both sides, as means."""
    numbers = [(_numbers(pair.before, pair), _numbers(pair.after, pair)) for pair in pairs]
    found: dict[str, Amount] = {}
    for name in numbers[0][0]:
        both = [(old[name], new[name]) for old, new in numbers]
        known = [values for values in both if None not in values]
        before, after = (_mean(side) for side in zip(*(known or both), strict=True))
        delta = None if before is None or after is None else after - before
        found[name] = Amount(before, after, delta)
    return found


def _mean(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return round(sum(known) / len(known)) if known else None


def _numbers(device: DeviceSummary, pair: DevicePair) -> dict[str, int | None]:
    sample, counts = _sample(device, pair.reasons), device.report.counts
    highest = device.report.peak_reserved
    has_trace = device.report.contradiction is not None or highest is not None
    return {
        **{name: getattr(sample, name) for name in AMOUNTS if name != "free_concentration"},
        "peak_reserved_bytes": None if pair.reasons or highest is None else highest.reserved_bytes,
        **{name: getattr(counts, name) if has_trace else None for name in _COUNTS},
    }
