"""The comparison of two snapshots, or of the snapshots of two runs.

Each device is compared at its own peak of allocated bytes, or both devices at the end if one of
them has no history.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytracer.analysis.device_data import why_empty
from pytracer.analysis.diff.devices import (
    DevicePair,
    device_difference,
    file_changes,
    kind_of,
    pair_devices,
)
from pytracer.analysis.diff.differences import Difference, OptionChange
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
        note = "Files of phases do not count here: files of steps hold the same blocks"
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


_FALSIFIES = {
    "forward_stacks": "call sites are compared without the stacks of forward calls, because only "
    "one side has them. This alone can change the categories and modules of backward allocations",
    "stack_depth": "a smaller stack_depth cuts stacks, so their call sites may differ",
    "context": "with a lower `context`, blocks or events have no stack",
    "stand_in.stacks": "blocks whose stacks differ between the files may get another call site",
    "stand_in.skip_actions": "the counts of the skipped events differ",
    "backends": "each backend's allocator rounds sizes in its own way",
}
"""What differs in the recordings of the same program, if only this option differs."""

OptionValues = tuple[str, str | None, str | None]


def option_changes(pairs: Iterable[tuple[SnapshotSummary, SnapshotSummary]]) -> list[OptionChange]:
    """Return what differs between each two files, first what falsifies their comparison."""
    pairs = list(pairs)
    found = Counter(values for pair in pairs for values in _of_pair(*pair))
    falsifies = dict(_FALSIFIES)
    files = [file.metadata for pair in pairs for file in pair if file.metadata.is_pytracers]
    if all(metadata.stacks.truncated == 0 for metadata in files):
        del falsifies["stack_depth"]
    changes = [
        OptionChange(*values, falsifies=falsifies.get(values[0], ""), pairs=count)
        for values, count in found.most_common()
    ]
    return sorted(changes, key=lambda change: not change.falsifies)


def _of_pair(before: SnapshotSummary, after: SnapshotSummary) -> Iterator[OptionValues]:
    yield from _changed(before.metadata.options, after.metadata.options, "pytracer")
    name, settings = "allocator_settings", (before.allocator_settings, after.allocator_settings)
    yield from _changed(*settings, name, f"{name}.")


def _changed(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str, prefix: str = ""
) -> Iterator[OptionValues]:
    """Find the values that differ between two files.

    Args:
        before, after: The values of each file; {} if it has none.
        name: The name to yield if one file has none.
        prefix: The prefix of the values' names.

    Yields:
        The name, and both values as text; None if that file does not have the value.
    """
    first, second = (dict(_flatten(values, prefix)) for values in (before, after))
    if not first or not second:  # the file has none
        first, second = ({name: f"({len(one)} values)"} if one else {} for one in (first, second))
    for key in dict.fromkeys([*first, *second]):
        if first.get(key) != second.get(key):
            yield key, first.get(key), second.get(key)


def _flatten(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
