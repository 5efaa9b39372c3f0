"""The changes of call sites, phases, categories and modules between recordings."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pytracer.analysis.diff.matching import Rule
from pytracer.reading.snapshot import Frame

Kind = Literal["new", "gone", "grown", "shrunk", "same"]


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


class Pair(NamedTuple):
    """The memory of call sites, phases, categories or modules in two files."""

    place: str
    before: Mapping[Any, Held]
    after: Mapping[Any, Held]


def changes(
    pairs: Sequence[Pair],
    match: Callable[[Iterable[Any], Iterable[Any]], Mapping[Any, tuple[Any, Rule]]] | None = None,
) -> list[Change]:
    """Return the changes over all pairs of files, the largest first.

    Args:
        pairs: What the call sites, phases, categories or modules of each two files hold.
        match: Returns the counterparts of keys of the baseline, from the keys of both sides. None:
            equal keys are counterparts.
    """
    # By key and the index of the pair, so that a key takes as long as the pairs that have it.
    before, after = (defaultdict[Any, dict[int, Held]](dict) for _ in range(2))
    for i, pair in enumerate(pairs):
        for side, held_by in ((pair.before, before), (pair.after, after)):
            for key, held in side.items():
                held_by[key][i] = held
    both = before.keys() & after.keys()
    matched: Mapping[Any, tuple[Any, Rule | None]] = {key: (key, None) for key in both}
    if match is not None:
        matched = match(before, after)
    places = [pair.place for pair in pairs]
    found = []
    for key, old in before.items():
        other, rule = matched.get(key, (None, None))
        new = after.pop(other) if key in matched else {}
        found.append(_change(places, rule, key, old, other, new))
    found += (_change(places, None, None, {}, key, new) for key, new in after.items())
    return sorted(
        found,
        key=lambda change: (change.most_bytes, max(change.before_bytes, change.after_bytes)),
        reverse=True,
    )


def _change(
    places: Sequence[str],
    rule: Rule | None,
    before: Frame | str | None,
    old: Mapping[int, Held],
    after: Frame | str | None,
    new: Mapping[int, Held],
) -> Change:
    """Return the change of what holds memory in the pairs of these places, by their indices."""
    nothing = Held(0, 0)
    deltas = {
        i: new.get(i, nothing).size_bytes - old.get(i, nothing).size_bytes
        for i in sorted({*old, *new})
    }
    largest = max(deltas, key=lambda i: abs(deltas[i]))
    total, several = sum(deltas.values()), len(places) > 1

    def mean(numbers: Iterable[int]) -> int:
        return round(sum(numbers) / len(places))

    before_bytes, after_bytes = (
        mean(held.size_bytes for held in side.values()) for side in (old, new)
    )
    kind: Kind = "grown" if total > 0 else "shrunk" if total < 0 else "same"
    return Change(
        before=before,
        after=after,
        matched_by=rule,
        kind=kind if old and new else "gone" if old else "new",
        before_bytes=before_bytes,
        after_bytes=after_bytes,
        delta_bytes=after_bytes - before_bytes,
        before_count=mean(held.number for held in old.values()),
        after_count=mean(held.number for held in new.values()),
        largest_in=places[largest] if several else None,
        largest_delta_bytes=deltas[largest] if several else None,
    )
