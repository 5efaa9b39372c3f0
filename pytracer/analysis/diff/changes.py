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
from itertools import chain
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
    before, after = _keys(pairs)
    return _sorted(
        SiteChange(
            **_numbers(pairs, old, new),
            before=sorted(frame for frame in old if frame is not None),
            after=sorted(frame for frame in new if frame is not None),
            matched_by=matched_by,
        )
        for old, new, matched_by in _matches(before, after)
    )


def phase_changes(pairs: Sequence[Pair[str | None]]) -> list[PhaseChange]:
    """Return the changes of phases over all pairs, the largest first."""
    before, after = _keys(pairs)
    return _sorted(
        PhaseChange(**_numbers(pairs, [phase], [phase]), phase=phase)
        for phase in dict.fromkeys([*before, *after])
    )


def category_changes(pairs: Sequence[Pair[str]]) -> list[CategoryChange]:
    """Return the changes of categories over all pairs, the largest first."""
    before, after = _keys(pairs)
    return _sorted(
        CategoryChange(**_numbers(pairs, [category], [category]), category=category)
        for category in dict.fromkeys([*before, *after])
    )


def module_changes(pairs: Sequence[Pair[str | None]]) -> list[ModuleChange]:
    """Return the changes of modules over all pairs, the largest first."""
    before, after = _keys(pairs)
    return _sorted(
        ModuleChange(**_numbers(pairs, [module], [module]), module=module)
        for module in dict.fromkeys([*before, *after])
    )


def _keys(pairs: Sequence[Pair[Key]]) -> tuple[list[Key], list[Key]]:
    before = dict.fromkeys(key for pair in pairs for key in pair.before)
    return list(before), list(dict.fromkeys(key for pair in pairs for key in pair.after))


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


def _numbers(
    pairs: Sequence[Pair[Key]], before: Sequence[Key], after: Sequence[Key]
) -> dict[str, Any]:
    """Return the fields of a `Change` of the keys `before` and `after`, which are the same."""
    old = [[pair.before[key] for key in before if key in pair.before] for pair in pairs]
    new = [[pair.after[key] for key in after if key in pair.after] for pair in pairs]
    deltas = [
        sum(held.size_bytes for held in now) - sum(held.size_bytes for held in was)
        for was, now in zip(old, new, strict=True)
    ]
    all_old, all_new = [*chain.from_iterable(old)], [*chain.from_iterable(new)]

    def mean(numbers: Iterable[int]) -> int:
        return round(sum(numbers) / len(pairs))

    largest = max(range(len(pairs)), key=lambda i: abs(deltas[i]))
    several = len(pairs) > 1
    kind: Kind = "grown" if sum(deltas) > 0 else "shrunk" if sum(deltas) < 0 else "same"
    return {
        "kind": kind if all_old and all_new else "gone" if all_old else "new",
        "before_bytes": mean(held.size_bytes for held in all_old),
        "after_bytes": mean(held.size_bytes for held in all_new),
        "delta_bytes": mean(deltas),
        "before_count": mean(held.number for held in all_old),
        "after_count": mean(held.number for held in all_new),
        "largest_in": pairs[largest].place if several else None,
        "largest_delta_bytes": deltas[largest] if several else None,
    }


AnyChange = TypeVar("AnyChange", bound=Change)


def _sorted(changes: Iterable[AnyChange]) -> list[AnyChange]:
    return sorted(
        changes,
        key=lambda change: (change.most_bytes, max(change.before_bytes, change.after_bytes)),
        reverse=True,
    )
