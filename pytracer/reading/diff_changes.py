"""Which call sites and phases of two snapshots are the same, and how much more they hold.

Call sites are matched by file, function and line; what is left by file and function, since lines
move; what is left then by function and the last two parts of the path, and at last by function and
file name, since paths differ between machines and backends. Sites of one side that a rule cannot
tell apart are summed up, not guessed.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pytracer.reading.snapshot import Frame

Kind = Literal["new", "gone", "grown", "shrunk", "same"]
Key = TypeVar("Key", bound=Hashable)


class Held(NamedTuple):
    """What a call site or a phase held: bytes, and how many blocks or allocations."""

    size_bytes: int
    number: int


Sites = Mapping[Frame | None, Held]
Phases = Mapping[str | None, Held]


@dataclass(frozen=True)
class Change:
    """How much a call site or a phase held, before and after.

    Attributes:
        kind: "new" and "gone": it is in one of the two alone. The others are of `delta_bytes`.
        before_bytes, after_bytes: Of the blocks that were active at the moment of comparison. Of
            several pairs of files the mean, as what follows.
        delta_bytes: `after_bytes - before_bytes`.
        before_count, after_count: Of a call site how many blocks these were, of a phase how many
            allocations it made in the whole trace.
        largest_in: Of several pairs of files, the one whose delta is the largest in size, and
        largest_delta_bytes: that delta. None of one pair.
    """

    kind: Kind
    before_bytes: int
    after_bytes: int
    delta_bytes: int
    before_count: int
    after_count: int
    largest_in: str | None
    largest_delta_bytes: int | None

    @property
    def most_bytes(self) -> int:
        """The size of the largest delta, of the mean or of a pair: in the mean they may cancel."""
        return max(abs(self.delta_bytes), abs(self.largest_delta_bytes or 0))


@dataclass(frozen=True)
class SiteChange(Change):
    """One call site; or several, which could not be told apart.

    Attributes:
        before, after: Its frames on either side; [] if its stack is not in the snapshot.
        matched_by: "line", "function", "path" or "file name"; None: it is on one side alone.
    """

    before: list[Frame]
    after: list[Frame]
    matched_by: str | None


@dataclass(frozen=True)
class PhaseChange(Change):
    """One phase; `phase` is "" for none, None for blocks that are older than the trace."""

    phase: str | None


@dataclass(frozen=True)
class Pair(Generic[Key]):
    """What was held in two files."""

    place: str
    before: Mapping[Key, Held]
    after: Mapping[Key, Held]


def site_changes(pairs: Sequence[Pair[Frame | None]]) -> list[SiteChange]:
    """How call sites differ over all pairs, the largest difference first."""
    before, after = _keys(pairs)
    return _sorted(
        SiteChange(
            **_numbers(pairs, ones, others),
            before=sorted(each for each in ones if each is not None),
            after=sorted(each for each in others if each is not None),
            matched_by=matched_by,
        )
        for ones, others, matched_by in _matches(before, after)
    )


def phase_changes(pairs: Sequence[Pair[str | None]]) -> list[PhaseChange]:
    """How phases differ over all pairs, the largest difference first."""
    before, after = _keys(pairs)
    return _sorted(
        PhaseChange(**_numbers(pairs, [phase], [phase]), phase=phase)
        for phase in dict.fromkeys([*before, *after])
    )


def _keys(pairs: Sequence[Pair[Key]]) -> tuple[list[Key], list[Key]]:
    before = dict.fromkeys(key for pair in pairs for key in pair.before)
    return list(before), list(dict.fromkeys(key for pair in pairs for key in pair.after))


def _matches(
    before: Sequence[Frame | None], after: Sequence[Frame | None]
) -> Iterator[tuple[list[Frame | None], list[Frame | None], str | None]]:
    """Sites that are the same, and by what; one side is empty of those that have no match."""
    for name, key in _RULES.items():
        one, other = _grouped(before, key), _grouped(after, key)
        both = one.keys() & other.keys()
        yield from ((one[each], other[each], name) for each in one if each in both)
        before = [frame for each in one if each not in both for frame in one[each]]
        after = [frame for each in other if each not in both for frame in other[each]]
    yield from (([frame], [], None) for frame in before)
    yield from (([], [frame], None) for frame in after)


def _grouped(
    frames: Sequence[Frame | None], key: Callable[[Frame], Hashable]
) -> dict[Hashable, list[Frame | None]]:
    groups: dict[Hashable, list[Frame | None]] = defaultdict(list)
    for frame in frames:
        groups[None if frame is None else key(frame)].append(frame)
    return groups


def _end_of_path(frame: Frame, parts: int) -> tuple[str, ...]:
    return tuple(re.split(r"[/\\]", frame.filename)[-parts:])


_RULES: dict[str, Callable[[Frame], Hashable]] = {
    "line": lambda frame: frame,
    "function": lambda frame: (frame.filename, frame.name),
    "path": lambda frame: (_end_of_path(frame, 2), frame.name),
    "file name": lambda frame: (_end_of_path(frame, 1), frame.name),
}


def _numbers(
    pairs: Sequence[Pair[Key]], before: Sequence[Key], after: Sequence[Key]
) -> dict[str, Any]:
    """The fields of a `Change`, of things that are the same."""
    ones = [[pair.before[key] for key in before if key in pair.before] for pair in pairs]
    others = [[pair.after[key] for key in after if key in pair.after] for pair in pairs]
    deltas = [
        sum(held.size_bytes for held in other) - sum(held.size_bytes for held in one)
        for one, other in zip(ones, others, strict=True)
    ]
    was, now = [held for one in ones for held in one], [held for other in others for held in other]

    def mean(numbers: Iterable[int]) -> int:
        return round(sum(numbers) / len(pairs))

    largest = max(range(len(pairs)), key=lambda i: abs(deltas[i]))
    several = len(pairs) > 1
    kind: Kind = "grown" if sum(deltas) > 0 else "shrunk" if sum(deltas) < 0 else "same"
    return {
        "kind": kind if was and now else "gone" if was else "new",
        "before_bytes": mean(held.size_bytes for held in was),
        "after_bytes": mean(held.size_bytes for held in now),
        "delta_bytes": mean(deltas),
        "before_count": mean(held.number for held in was),
        "after_count": mean(held.number for held in now),
        "largest_in": pairs[largest].place if several else None,
        "largest_delta_bytes": deltas[largest] if several else None,
    }


AnyChange = TypeVar("AnyChange", bound=Change)


def _sorted(changes: Iterable[AnyChange]) -> list[AnyChange]:
    return sorted(
        changes,
        key=lambda each: (each.most_bytes, max(each.before_bytes, each.after_bytes)),
        reverse=True,
    )
