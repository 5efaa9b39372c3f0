"""The changes of call sites, phases, categories and modules between recordings."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from pytracer.analysis.diff.matching import Lines, Rule, match_sites
from pytracer.reading.snapshot import Frame

Kind = Literal["new", "gone", "grown", "shrunk", "same"]
Key = TypeVar("Key", bound=Frame | str | None)


class Held(NamedTuple):
    """The memory of a call site, phase, category or module: bytes, and a number of blocks.

    Of a phase, the number is that of its allocations.
    """

    size_bytes: int
    number: int


@dataclass(frozen=True)
class Change:
    """The memory of a call site, phase, category or module, before and after.

    Attributes:
        before: What held the memory in the baseline: the frame of a call site, or the name of a
            phase, category or module. None if only the new recording has it, for blocks without a
            stack, for blocks of no known module, and as a phase for blocks that are older than the
            trace. The phase "" is no phase.
        after: As `before`, but in the new recording.
        matched_by: The rule that matched call sites: "line"; "function": another line of the same
            function; "path" or "file name": a file in another folder; None for others, and if only
            one side has the call site.
        kind: "new" or "gone" if only one side has it; else "grown", "shrunk" or "same", by
            `delta_bytes`.
        before_bytes: The bytes of its blocks that were active at the compared sample of the
            baseline. With several pairs of files, the mean over all pairs.
        after_bytes: As `before_bytes`, but of the new recording.
        delta_bytes: `after_bytes - before_bytes`.
        before_count: In the baseline, the number of these blocks for a call site, a category or a
            module, and the number of allocations in the trace for a phase. With several pairs of
            files, the mean.
        after_count: As `before_count`, but in the new recording.
        largest_in: With several pairs of files, the pair with the largest delta; else None.
        largest_delta_bytes: With several pairs of files, the delta of that pair; else None.
    """

    before: Frame | str | None
    after: Frame | str | None
    matched_by: Rule | None
    kind: Kind
    before_bytes: int
    after_bytes: int
    delta_bytes: int
    before_count: int
    after_count: int
    largest_in: str | None
    largest_delta_bytes: int | None

    @property
    def name(self) -> Frame | str | None:
        """What holds the memory: `after`, or `before` if the new recording does not have it."""
        return self.before if self.kind == "gone" else self.after

    @property
    def is_change(self) -> bool:
        """Whether the bytes or the numbers differ."""
        return bool(self.most_bytes) or self.before_count != self.after_count

    @property
    def most_bytes(self) -> int:
        """The largest absolute delta, of the mean or of a pair: in the mean deltas may cancel."""
        return max(abs(self.delta_bytes), abs(self.largest_delta_bytes or 0))


@dataclass(frozen=True)
class Pair(Generic[Key]):
    """The memory of call sites, phases, categories or modules in two files."""

    place: str
    before: Mapping[Key, Held]
    after: Mapping[Key, Held]


def site_changes(pairs: Sequence[Pair[Frame | None]], before: Lines, after: Lines) -> list[Change]:
    """Return the changes of call sites over all pairs, the largest first.

    Args:
        pairs: What the call sites of each two files hold.
        before, after: The lines in the stacks of all baselines, and of all new recordings.
    """
    sides = _Sides(pairs)
    matches = match_sites(sides.before, sides.after, before, after)
    return _sorted(sides.change(*match) for match in matches)


def changes(pairs: Sequence[Pair[Key]]) -> list[Change]:
    """Return the changes of phases, categories or modules over all pairs, the largest first."""
    sides = _Sides(pairs)
    names = dict.fromkeys([*sides.before, *sides.after])
    return _sorted(sides.change([name], [name], None) for name in names)


class _Sides(Generic[Key]):
    """Both sides of all pairs, by key, so that a key takes as long as the pairs that have it.

    Attributes:
        before, after: For each key of a side the pairs that have it, by their index.
    """

    def __init__(self, pairs: Sequence[Pair[Key]]) -> None:
        self._pairs = pairs
        self.before: dict[Key, list[tuple[int, Held]]] = defaultdict(list)
        self.after: dict[Key, list[tuple[int, Held]]] = defaultdict(list)
        for i, pair in enumerate(pairs):
            for side, found in ((pair.before, self.before), (pair.after, self.after)):
                for key, held in side.items():
                    found[key].append((i, held))

    def change(self, before: Sequence[Key], after: Sequence[Key], rule: Rule | None) -> Change:
        """Return the change of one key; `before` or `after` is [] if that side lacks the key."""
        old = [each for key in before for each in self.before.get(key, ())]
        new = [each for key in after for each in self.after.get(key, ())]
        deltas = {i: 0 for i, _ in sorted([*old, *new])}
        for sign, side in ((-1, old), (1, new)):
            for i, held in side:
                deltas[i] += sign * held.size_bytes
        total = sum(deltas.values())

        def mean(numbers: Iterable[int]) -> int:
            return round(sum(numbers) / len(self._pairs))

        before_bytes, after_bytes = (
            mean(held.size_bytes for _, held in side) for side in (old, new)
        )
        largest = max(deltas, key=lambda i: abs(deltas[i]))
        several = len(self._pairs) > 1
        kind: Kind = "grown" if total > 0 else "shrunk" if total < 0 else "same"
        return Change(
            before=before[0] if old else None,
            after=after[0] if new else None,
            matched_by=rule,
            kind=kind if old and new else "gone" if old else "new",
            before_bytes=before_bytes,
            after_bytes=after_bytes,
            delta_bytes=after_bytes - before_bytes,
            before_count=mean(held.number for _, held in old),
            after_count=mean(held.number for _, held in new),
            largest_in=self._pairs[largest].place if several else None,
            largest_delta_bytes=deltas[largest] if several else None,
        )


def _sorted(found: Iterable[Change]) -> list[Change]:
    return sorted(
        found,
        key=lambda change: (change.most_bytes, max(change.before_bytes, change.after_bytes)),
        reverse=True,
    )
