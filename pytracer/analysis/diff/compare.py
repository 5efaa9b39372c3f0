"""The comparison of two snapshots, or of the snapshots of two runs.

Each device is compared at its own peak of allocated bytes, or both devices at the end if one of
them has no history.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from pytracer.analysis.diff.changes import (
    category_changes,
    module_changes,
    phase_changes,
    site_changes,
)
from pytracer.analysis.diff.devices import (
    DevicePair,
    device_difference,
    file_difference,
    pair_devices,
    uncertain_note,
)
from pytracer.analysis.diff.differences import Difference, DirectoryDifference, FileDifference
from pytracer.analysis.diff.options import OptionChange, OptionValues, changed_options
from pytracer.analysis.diff.summaries import SnapshotSummary, summarise
from pytracer.reading.snapshot import Snapshot


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
    return compare_summaries(summarise(baseline, device), summarise(new, device))


def compare_summaries(baseline: SnapshotSummary, new: SnapshotSummary) -> Difference:
    """Compare two snapshots, given their summaries."""
    pairs, (only_baseline, only_new) = pair_devices(baseline, new)
    return Difference(
        baseline=baseline.path,
        new=new.path,
        devices=[device_difference(pair) for pair in pairs],
        only_baseline=only_baseline,
        only_new=only_new,
        metadata=[OptionChange(*change, pairs=1) for change in _options(baseline, new)],
    )


def compare_directories(
    baseline: str,
    new: str,
    pairs: Iterable[tuple[str, SnapshotSummary, SnapshotSummary]],
    only_baseline: Iterable[str] = (),
    only_new: Iterable[str] = (),
    errors: Iterable[str] = (),
) -> DirectoryDifference:
    """Compare two runs.

    Args:
        baseline, new: The runs' directories.
        pairs: For each two matched files what they are of, as in "step 3, rank 0", and their
            summaries.
        only_baseline, only_new: The files without a match.
        errors: Why other matched files could not be read.
    """
    pairs = list(pairs)
    files: list[FileDifference] = []
    only = [*only_baseline], [*only_new]
    counted: list[DevicePair] = []  # the pairs whose call sites and phases count
    # The file of a step has the blocks of its phases too: a mean over both would count them twice.
    has_complete = not all(_is_of_phase(*pair) for _, *pair in pairs)
    metadata: Counter[OptionValues] = Counter()
    reasons: dict[str, None] = {}
    notes: Counter[str] = Counter()
    uncertain: dict[str, list[int]] = {}  # by side, the largest of each pair of files
    for place, before, after in pairs:
        metadata.update(_options(before, after))
        devices, unpaired = pair_devices(before, after, place)
        for known, path, names in zip(only, (before.path, after.path), unpaired, strict=True):
            known += (f"{path}, {name}" for name in names)
        if not has_complete or not _is_of_phase(before, after):
            counted += devices
        reasons |= dict.fromkeys(reason for device in devices for reason in device.reasons)
        notes.update({note for device in devices for note in device.notes})
        largest: dict[str, int] = {}
        for side, more in (bound for device in devices for bound in device.uncertain):
            largest[side] = max(more, largest.get(side, 0))
        for side, more in largest.items():
            uncertain.setdefault(side, []).append(more)
        files += (file_difference(before, after, place, device) for device in devices)
    bounds = Counter(
        {uncertain_note(side, max(bytes_)): len(bytes_) for side, bytes_ in uncertain.items()}
    )
    sentences = [
        note if count == len(pairs) else f"{note} ({count} of {len(pairs)} pairs)"
        for note, count in (notes + bounds).most_common()
    ]
    if has_complete and any(_is_of_phase(*pair) for _, *pair in pairs):
        sentences.append(
            "Call sites and phases are those of files of complete steps: files of one phase "
            "contain the same blocks a second time"
        )
    return DirectoryDifference(
        baseline=baseline,
        new=new,
        files=files,
        pairs=len(pairs),
        only_baseline=only[0],
        only_new=only[1],
        sites=site_changes([device.sites for device in counted if device.sites is not None]),
        phases=phase_changes([device.phases for device in counted if device.phases is not None]),
        categories=category_changes(
            [device.categories for device in counted if device.categories is not None]
        ),
        modules=module_changes(
            [device.modules for device in counted if device.modules is not None]
        ),
        metadata=[OptionChange(*change, pairs=count) for change, count in metadata.most_common()],
        reasons=list(reasons),
        notes=sentences,
        errors=list(errors),
    )


def _is_of_phase(baseline: SnapshotSummary, new: SnapshotSummary) -> bool:
    return (baseline.only_phase, new.only_phase) != (None, None)


def _options(before: SnapshotSummary, after: SnapshotSummary) -> Iterator[OptionValues]:
    yield from changed_options(before.metadata, after.metadata, "pytracer")
    settings = before.allocator_settings, after.allocator_settings
    yield from changed_options(*settings, "allocator_settings", "allocator_settings.")
