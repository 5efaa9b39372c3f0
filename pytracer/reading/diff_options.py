"""What differs in how two snapshots were made: versions, options, the allocator's settings."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What is of the process and the moment, of what pytracer tells of a file.
_NOT_OPTIONS = frozenset(
    ("pid", "host", "written_ns", "devices", "stacks", "phases", "window", "current_step", "oom")
)


@dataclass(frozen=True)
class Fact:
    """What differs in how two snapshots were made.

    Attributes:
        name: As in "torch", "metadata.lr" or "allocator_settings.expandable_segments". "pytracer"
            and "allocator_settings" alone: one of the files has nothing of the kind.
        before, after: The values, as text; None: that file does not have it.
        pairs: In how many pairs of files it is so.
    """

    name: str
    before: str | None
    after: str | None
    pairs: int


Option = tuple[str, str | None, str | None]


def differing(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str, prefix: str = ""
) -> Iterator[Option]:
    """Finds what differs between what two files tell of how they were made.

    Args:
        before, after: What they tell; {}: nothing.
        name: Of the whole, if one file has nothing of it.
        prefix: Of the names in it.

    Yields:
        Name, and both values as text; None: that file does not have it.
    """
    one, other = (dict(_flat(each, prefix)) for each in (before, after))
    if not one or not other:
        if one or other:
            yield name, _told(one), _told(other)
        return
    for each in dict.fromkeys([*one, *other]):
        if one.get(each) != other.get(each):
            yield each, one.get(each), other.get(each)


def _told(options: Mapping[str, str]) -> str | None:
    return f"({len(options)} told)" if options else None


def _flat(values: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if not prefix and key in _NOT_OPTIONS:
            continue
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
