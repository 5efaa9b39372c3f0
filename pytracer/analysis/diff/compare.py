"""The comparison of two snapshots, or of the snapshots of two runs.

Each device is compared at its own peak of allocated bytes, or both devices at the end if one of
them has no history.
"""

from collections import defaultdict
from collections.abc import Iterable

from pytracer.analysis.device_data import why_empty
from pytracer.analysis.diff.devices import (
    DevicePair,
    device_difference,
    file_changes,
    kind_of,
    pair_devices,
)
from pytracer.analysis.diff.differences import Difference
from pytracer.analysis.diff.options import option_changes
from pytracer.analysis.diff.summaries import SnapshotSummary, summarise
from pytracer.reading.snapshot import Snapshot

SummaryPair = tuple[str, SnapshotSummary, SnapshotSummary]
"""What two matched files are of, as in "step 3, rank 0", and their summaries."""


def compare_snapshots(baseline: Snapshot, new: Snapshot, device: int | None = None) -> Difference:
    """Compare two snapshots.

    Args:
        baseline: The first snapshot, as returned by `load`.
        new: The second snapshot, of the same device or of another kind.
        device: The index of the only device to compare; None for all that were in use. The CPU is
            compared with the CPU. If each snapshot has one accelerator these two are compared,
            otherwise accelerators of the same index.

    Raises:
        PytracerError: A snapshot has no such device.
    """
    pair = ("", summarise(baseline, device), summarise(new, device))
    return compare(baseline.path, new.path, [pair])


def compare(
    baseline: str,
    new: str,
    pairs: Iterable[SummaryPair],
    only_baseline: Iterable[str] = (),
    only_new: Iterable[str] = (),
    errors: Iterable[str] = (),
) -> Difference:
    """Compare two files or two runs.

    Args:
        baseline, new: The files, or the runs' directories.
        pairs: The matched files; the place of two files that were named is "".
        only_baseline, only_new: The files without a match.
        errors: Why other matched files could not be read.
    """
    pairs = list(pairs)
    only = [*only_baseline], [*only_new]
    # The file of a step has the blocks of its phases too: a mean over both would count them twice.
    are_of_phases = [
        any(file.metadata.only_phase is not None for file in (before, after))
        for _, before, after in pairs
    ]
    has_complete = not all(are_of_phases)
    found: list[DevicePair] = []
    by_kind: dict[object, list[DevicePair]] = defaultdict(list)
    failed = list(errors)
    for (place, before, after), is_of_phase in zip(pairs, are_of_phases, strict=True):
        empty = [file for file in (before, after) if not file.devices]
        failed += (f"{file.path}: {why_empty(file.metadata)}" for file in empty)
        devices, unpaired = pair_devices(before, after, place)
        for known, path, names in zip(only, (before.path, after.path), unpaired, strict=True):
            known += (f"{path}, {name}" if place else name for name in names)
        found += devices
        if not (has_complete and is_of_phase):
            for each in devices:
                compared = each.before.report.name, each.after.report.name
                by_kind[tuple(map(kind_of, compared)) if place else compared].append(each)
    differences = [device_difference(group) for group in by_kind.values()]
    if has_complete and any(are_of_phases):
        note = "These are files of complete steps: files of one phase have the same blocks again"
        for difference in differences:
            difference.notes.append(note)
    return Difference(
        baseline=baseline,
        new=new,
        pairs=len(pairs),
        metadata=option_changes((before, after) for _, before, after in pairs),
        files=file_changes([each for each in found if each.place]),
        devices=differences,
        only_baseline=only[0],
        only_new=only[1],
        errors=failed,
    )
