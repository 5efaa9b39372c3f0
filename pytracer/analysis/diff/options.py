"""Differences in how two snapshots were made: versions, options, the allocator's settings."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytracer.analysis.diff.summaries import SnapshotSummary


@dataclass(frozen=True)
class OptionChange:
    """A version, option or setting that differs between two snapshots.

    Attributes:
        name: The name, as in "torch", "metadata.lr" or "allocator_settings.expandable_segments".
            The name "pytracer" alone means that one file has no metadata of pytracer, and
            "allocator_settings" alone means that one file has no allocator settings.
        before: The value in the baseline, as text; None if the baseline does not have it.
        after: The value in the new snapshot, as text; None if the new snapshot does not have it.
        falsifies: Which part of the comparison shows the options instead of the program, as a
            sentence; "" if none does.
        pairs: The number of pairs of files with this difference.
    """

    name: str
    before: str | None
    after: str | None
    falsifies: str
    pairs: int


_FALSIFIES = {
    "forward_stacks": "call sites are compared without the stacks of forward calls, because only "
    "one side has them. Categories and modules of what the backward pass allocates may differ for "
    "this reason alone",
    "stack_depth": "a line that is called through more frames than the smaller depth may be "
    "another call site",
    "context": "with less context, blocks or events have no stack",
    "stand_in.stacks": "with other stacks, a block may have another call site",
    "stand_in.skip_actions": "the counts of the skipped events differ",
    "backends": "each backend's allocator rounds sizes in its own way",
}
"""What differs in the recordings of the same program, if only this option differs."""

OptionValues = tuple[str, str | None, str | None]


def option_changes(
    pairs: Iterable[tuple[SnapshotSummary, SnapshotSummary]],
) -> list[OptionChange]:
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
