"""Differences in how two snapshots were made: versions, options, the allocator's settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Keys of a file's metadata that describe the process or the time, not how the job was run.
_NOT_OPTIONS = frozenset(
    (
        *("pid", "host", "written_ns", "devices", "stacks", "phases", "module_phases", "tensors"),
        *("window", "current_step", "oom"),
    )
)


@dataclass(frozen=True)
class OptionChange:
    """A version, option or setting that differs between two snapshots.

    Attributes:
        name: The name, as in "torch", "metadata.lr" or "allocator_settings.expandable_segments".
            The name "pytracer" alone means that one file has no metadata of pytracer, and
            "allocator_settings" alone means that one file has no allocator settings.
        before: The value in the baseline, as text; None if the baseline does not have it.
        after: The value in the new snapshot, as text; None if the new snapshot does not have it.
        pairs: The number of pairs of files with this difference.
    """

    name: str
    before: str | None
    after: str | None
    pairs: int


OptionValues = tuple[str, str | None, str | None]


def changed_options(
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
    if not first or not second:
        if first or second:
            yield name, _count(first), _count(second)
        return
    for key in dict.fromkeys([*first, *second]):
        if first.get(key) != second.get(key):
            yield key, first.get(key), second.get(key)


def _count(options: Mapping[str, str]) -> str | None:
    return f"({len(options)} values)" if options else None


def _flatten(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if not prefix and key in _NOT_OPTIONS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
