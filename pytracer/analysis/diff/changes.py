"""The changes of call sites and phases between two snapshots.

Call sites are matched by file, function and line. The remaining ones are matched by file and
function, because lines move; then by function and the last two parts of the path; and last by
function and file name, because paths differ between machines and backends. Sites of one side that a
rule does not distinguish are added up.
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
    """The memory of a call site or phase: bytes, and the number of blocks or allocations."""

    size_bytes: int
    number: int


Sites = Mapping[Frame | None, Held]
Phases = Mapping[str | None, Held]


@dataclass(frozen=True)
class Change:
    """The memory of a call site or phase, before and after.

    Attributes:
        kind: "new" or "gone" if only one side has it; else "grown", "shrunk" or "same", by
            `delta_bytes`.
        before_bytes: The bytes of its blocks that were active at the compared sample of the
            baseline. With several pairs of files, the mean over all pairs.
        after_bytes: As `before_bytes`, but of the new snapshot.
        delta_bytes: `after_bytes - before_bytes`.
        before_count: In the baseline, the number of these blocks for a call site, a category or a
            module, and the number of allocations in the trace for a phase. With several pairs of
            files, the mean.
        after_count: As `before_count`, but in the new snapshot.
        largest_in: With several pairs of files, the pair with the largest delta; else None.
        largest_delta_bytes: With several pairs of files, the delta of that pair; else None.
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
    def is_change(self) -> bool:
        """Whether the bytes or the numbers differ."""
        return bool(self.most_bytes) or self.before_count != self.after_count

    @property
    def most_bytes(self) -> int:
        """The largest absolute delta, of the mean or of a pair: in the mean deltas may cancel."""
        return max(abs(self.delta_bytes), abs(self.largest_delta_bytes or 0))


@dataclass(frozen=True)
class SiteChange(Change):
    """The change of one call site, or of several call sites that no rule distinguishes.

    Attributes:
        before: The call sites' frames in the baseline; [] if the stack is not in the snapshot.
        after: The call sites' frames in the new snapshot; [] if the stack is not in the snapshot.
        matched_by: The rule that matched both sides: "line", "function", "path" or "file name";
            None if only one side has the call site.
    """

    before: list[Frame]
    after: list[Frame]
    matched_by: str | None


@dataclass(frozen=True)
class PhaseChange(Change):
    """The change of one phase.

    Attributes:
        phase: The phase's name; "" for no phase, None for blocks that are older than the trace.
    """

    phase: str | None


@dataclass(frozen=True)
class CategoryChange(Change):
    """The change of one category.

    Attributes:
        category: What the blocks are for, as in `CategoryUsage`.
    """

    category: str


@dataclass(frozen=True)
class ModuleChange(Change):
    """The change of one module.

    Attributes:
        module: The path of the module, as in `ModuleUsage`; None for blocks of no known module.
    """

    module: str | None


@dataclass(frozen=True)
class Pair(Generic[Key]):
    """The memory of call sites, phases, categories or modules in two files."""

    place: str
    before: Mapping[Key, Held]
    after: Mapping[Key, Held]


def site_changes(pairs: Sequence[Pair[Frame | None]]) -> list[SiteChange]:
    """Return the changes of call sites over all pairs, the largest first."""
    sides = _Sides(pairs)
    return _sorted(
        SiteChange(
            **sides.numbers(old, new),
            before=sorted(frame for frame in old if frame is not None),
            after=sorted(frame for frame in new if frame is not None),
            matched_by=matched_by,
        )
        for old, new, matched_by in _matches(list(sides.before), list(sides.after))
    )


def phase_changes(pairs: Sequence[Pair[str | None]]) -> list[PhaseChange]:
    """Return the changes of phases over all pairs, the largest first."""
    sides = _Sides(pairs)
    return _sorted(PhaseChange(**sides.numbers([key], [key]), phase=key) for key in sides.keys)


def category_changes(pairs: Sequence[Pair[str]]) -> list[CategoryChange]:
    """Return the changes of categories over all pairs, the largest first."""
    sides = _Sides(pairs)
    return _sorted(
        CategoryChange(**sides.numbers([key], [key]), category=key) for key in sides.keys
    )


def module_changes(pairs: Sequence[Pair[str | None]]) -> list[ModuleChange]:
    """Return the changes of modules over all pairs, the largest first."""
    sides = _Sides(pairs)
    return _sorted(ModuleChange(**sides.numbers([key], [key]), module=key) for key in sides.keys)


class _Sides(Generic[Key]):
    """Both sides of all pairs, by key, so that a key takes as long as the pairs that have it.

    Attributes:
        before, after: For each key of a side the pairs that have it, by their index.
        keys: The keys of both sides.
    """

    def __init__(self, pairs: Sequence[Pair[Key]]) -> None:
        self._pairs = pairs
        self.before: dict[Key, list[tuple[int, Held]]] = defaultdict(list)
        self.after: dict[Key, list[tuple[int, Held]]] = defaultdict(list)
        for i, pair in enumerate(pairs):
            for side, found in ((pair.before, self.before), (pair.after, self.after)):
                for key, held in side.items():
                    found[key].append((i, held))
        self.keys = list(dict.fromkeys([*self.before, *self.after]))

    def numbers(self, before: Sequence[Key], after: Sequence[Key]) -> dict[str, Any]:
        """Return the fields of a `Change` of the keys `before` and `after`, which are the same."""
        old = [each for key in before for each in self.before.get(key, ())]
        new = [each for key in after for each in self.after.get(key, ())]
        deltas = {i: 0 for i, _ in sorted([*old, *new])}
        for sign, side in ((-1, old), (1, new)):
            for i, held in side:
                deltas[i] += sign * held.size_bytes
        total = sum(deltas.values())

        def mean(numbers: Iterable[int]) -> int:
            return round(sum(numbers) / len(self._pairs))

        largest = max(deltas, key=lambda i: abs(deltas[i]))
        several = len(self._pairs) > 1
        kind: Kind = "grown" if total > 0 else "shrunk" if total < 0 else "same"
        return {
            "kind": kind if old and new else "gone" if old else "new",
            "before_bytes": mean(held.size_bytes for _, held in old),
            "after_bytes": mean(held.size_bytes for _, held in new),
            "delta_bytes": mean(deltas.values()),
            "before_count": mean(held.number for _, held in old),
            "after_count": mean(held.number for _, held in new),
            "largest_in": self._pairs[largest].place if several else None,
            "largest_delta_bytes": deltas[largest] if several else None,
        }


def _matches(
    before: Sequence[Frame | None], after: Sequence[Frame | None]
) -> Iterator[tuple[list[Frame | None], list[Frame | None], str | None]]:
    """Yield matched sites and the rule; sites without a match have an empty other side."""
    for name, key in _RULES.items():
        old, new = _group(before, key), _group(after, key)
        both = old.keys() & new.keys()
        yield from ((frames, new[group], name) for group, frames in old.items() if group in both)
        before = [frame for group in old if group not in both for frame in old[group]]
        after = [frame for group in new if group not in both for frame in new[group]]
    yield from (([frame], [], None) for frame in before)
    yield from (([], [frame], None) for frame in after)


def _group(
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


AnyChange = TypeVar("AnyChange", bound=Change)


def _sorted(changes: Iterable[AnyChange]) -> list[AnyChange]:
    return sorted(
        changes,
        key=lambda change: (change.most_bytes, max(change.before_bytes, change.after_bytes)),
        reverse=True,
    )
