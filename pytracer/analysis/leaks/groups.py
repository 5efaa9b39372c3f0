"""The search for groups of blocks that grow, in the blocks of one device."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Literal

import numpy as np

from pytracer.analysis.call_sites import is_programs_frame
from pytracer.analysis.history import totals
from pytracer.analysis.holder_names import common_holder, holder_names, main_holder
from pytracer.analysis.leaks.doubts import Doubts
from pytracer.analysis.leaks.growth import (
    LEAST_SLOTS,
    Lives,
    Observation,
    Steadiness,
    is_level,
    largest_deviation,
    levels,
    longest_life,
    steadiness,
    theil_sen,
)
from pytracer.analysis.leaks.results import OF_MODEL, Growth, Release, in_order, is_of_optimizer
from pytracer.reading.snapshot import Column, Frame

_LEAST_OLDER = 8
"""The least number of older and newer growths together that prove a leak of rare growths."""

_MOST_OF_LINE = 0.9

_MOST_DIVISIONS = 32
"""How often a group is divided by callers at most, because recursion has any number of them."""


def search(seen: Observation) -> tuple[list[Growth], list[Release]]:
    """Return the memory that grew, leaks and the largest first, and memory that is no leak."""
    others, of_model = _Search(seen), _Search(seen)
    others.examine_all(~seen.is_owned)
    # Whether a released block was a part of a model is unknown: its line decides. A bounded
    # collection of modules is no leak, and a buffer may be replaced by a larger one.
    site, is_released = seen.site[seen.lives.stack], seen.lives.death < seen.slots
    of_model.examine_all(
        seen.is_of_model | (is_released & np.isin(site, np.unique(site[seen.is_of_model])))
    )
    growths = [*others.growths, *_with_states(seen, of_model.growths_of_model())]
    releases = sorted(others.releases, key=lambda release: -release.most_bytes)
    return in_order(growths), releases[:5]


def leaks_of_survivors(seen: Observation) -> list[Growth]:
    """Return the leaks by blocks of steps of which nothing else is known (`events_from`).

    A line that began to keep blocks late is none: it may fill a container that was emptied before.
    """
    latest = seen.position[0] + (seen.position[-1] - seen.position[0]) / 3
    return [
        growth
        for growth in search(seen)[0]
        if growth.verdict == "leak" and (growth.first_step or 0) <= latest
    ]


def _with_states(seen: Observation, of_model: Iterable[Growth]) -> list[Growth]:
    """Add to the growths of a model what its new parameters bring: gradients and states."""
    growths = list(of_model)
    if not growths:
        return []
    # All states of a parameter have its name: "exp_avg of weight". A list may have the optimizer
    # next to the model: "trials[3].optimizer of main()".
    of_parameters = [_item(text) or text.partition(" of ")[2] for text in seen.strings]
    of_states = _Search(replace(seen, strings=of_parameters))
    of_states.examine_all(seen.is_owned & ~seen.is_of_model)
    for states in of_states.growths:
        name = str(states.kept_by)
        is_same = [
            growth.kept_by == _of_model(name) or _item(growth.kept_by or "") == name
            for growth in growths
        ]
        if states.verdict == "leak" and any(is_same):
            at = is_same.index(True)
            growths[at] = joined(growths[at], states)
    return growths


def joined(growth: Growth, more: Growth) -> Growth:
    """Return a growth with the bytes of another one."""
    return replace(
        growth,
        bytes_per_step=growth.bytes_per_step + more.bytes_per_step,
        least_bytes_per_step=growth.least_bytes_per_step + more.least_bytes_per_step,
        most_bytes_per_step=growth.most_bytes_per_step + more.most_bytes_per_step,
        held_bytes=growth.held_bytes + more.held_bytes,
        blocks=growth.blocks + more.blocks,
    )


class _Search:
    def __init__(self, seen: Observation) -> None:
        self.seen = seen
        self.growths: list[Growth] = []
        self.releases: list[Release] = []
        self.doubts = Doubts(seen)

    def examine_all(self, chosen: Column) -> None:
        lives = self.seen.lives.of(chosen)
        for group in lives.by(self.seen.site[lives.stack]):
            if self.may_grow(group):
                self.examine(group)

    def growths_of_model(self) -> Iterator[Growth]:
        """Yield the leaks among what was found in parameters and buffers.

        All else is no doubt: a model is built in several parts, and each step may replace other
        parameters by those of another line. Then the steps release as much as they keep.
        """
        lives, slots = self.seen.lives, self.seen.slots
        parts = lives.of(self.seen.is_of_model | (lives.death < slots))
        births = np.unique(lives.birth[self.seen.is_of_model & (lives.birth > 0)])
        grown = np.diff(levels(parts, slots))[births - 1]
        for growth in self.growths:
            if growth.reason != self.seen.doubt:
                continue
            per_growth = growth.bytes_per_step * growth.period_steps
            if 2 * np.median(grown) >= min(per_growth, growth.held_bytes):
                kept_by = growth.kept_by
                if kept_by is None or " of " not in kept_by:  # else it is what keeps models
                    kept_by = OF_MODEL if kept_by is None else _of_model(kept_by)
                yield replace(growth, kept_by=kept_by, is_of_model=True)

    def examine(self, group: Lives, divisions: int = 0) -> bool:
        """Add what is found in a group; return whether a leak was.

        Args:
            divisions: How often they have been divided.
        """
        kept = self._kept(group)
        is_leak = isinstance(kept, Growth) and kept.verdict == "leak"
        # A call site may have several uses, of which one leaks.
        before = len(self.growths)
        parts = []
        if divisions < _MOST_DIVISIONS:
            parts = self._divided(group, by_caller_only=is_leak)
        if sum([self.examine(part, divisions + 1) for part in parts if self.may_grow(part)]):
            return True
        is_sure = isinstance(kept, Growth) and kept.reason == self.seen.doubt
        found = kept if parts or is_sure or self.seen.events_from else self._replaced(group) or kept
        if isinstance(found, Growth) and is_leak and parts:
            reason = "memory grows at several of its callers, but at each too rarely to judge"
            found = replace(found, verdict="unknown", reason=reason)
        if isinstance(found, Growth) and len(self.growths) == before:
            self.growths.append(found)
        if isinstance(found, Release) and not parts:
            self.releases.append(found)
        return isinstance(found, Growth) and found.verdict == "leak"

    def _divided(self, group: Lives, *, by_caller_only: bool) -> list[Lives]:
        """Divide the blocks by the first caller that differs; [] if all are alike.

        Unless `by_caller_only`, blocks with the same callers are divided by the rest of their
        stacks: by what the call site called.
        """
        stacks = np.unique(group.stack)
        if len(stacks) < 2:
            return []
        paths = [self.seen.frames(int(stack)) for stack in stacks]
        depth = len(_common(paths))
        keys: dict[object, int] = {}
        parts = [keys.setdefault(path[depth : depth + 1] or None, len(keys)) for path in paths]
        if len(keys) == 1:  # the stacks differ only in the frames that the call site called
            return [] if by_caller_only else list(group.by(group.stack))
        return list(group.by(np.array(parts)[np.searchsorted(stacks, group.stack)]))

    def _shared_frames(self, group: Lives) -> tuple[Frame, ...]:
        """Return the program's frames that all blocks share, the call site first."""
        shared = _common([self.seen.frames(int(stack)) for stack in np.unique(group.stack)])
        called_by = (frame for frame in shared[1:] if is_programs_frame(frame, self.seen.files))
        return (*shared[:1], *called_by)

    def may_grow(self, group: Lives) -> bool:
        """Return whether the group has blocks that a later slot than the first one kept."""
        return bool(np.any((group.birth > 0) & (group.death == self.seen.slots)))

    def _kept(self, group: Lives) -> Growth | Release | None:
        """Return whether blocks of the group stay for ever."""
        slots = self.seen.slots
        longest = longest_life(group, slots)
        # A block born later may still be released. Half a life more, because lives vary.
        end = slots - longest - longest // 2 - 1 if longest else slots
        alive = _without_set_up(group.of((group.birth >= 0) & (group.death == slots)))
        overdue = alive.of(alive.birth < end)
        growths = np.unique(overdue.birth)
        if len(growths) < 2:
            births = np.unique(alive.birth)
            if len(births) < 3:
                return None
            if self.seen.has_steps and slots < 2 * longest:
                level = np.cumsum(np.bincount(alive.birth, alive.size_bytes, slots))[births]
                reason = (
                    f"some of its blocks were released after {longest} steps; a file with at "
                    f"least {2 * longest} steps would show whether all of them are"
                )
                return self._growth("kept", reason, births, level, alive, alive, False)
            reason = f"its blocks are released after at most {longest} steps"
            return self._release(group, reason)
        steady = steadiness(growths, end, slots)
        older = group.of((group.birth < 0) & (group.death == slots))
        # Whether blocks of the same sizes were kept in steps that the file lacks.
        is_older = self.seen.begins_late and bool(
            np.isin(older.size_bytes, overdue.size_bytes).any()
        )
        if steady.is_open and is_older and self._is_confirmed(len(older), len(growths), end):
            steady = Steadiness("")
        if steady.reason and not steady.is_open:
            return self._release(group, steady.reason) if len(growths) > 2 else None
        if is_level(group, int(growths[0]), slots):
            return self._release(group, "the program released as much of this memory as it kept")
        reason = (
            self.seen.doubt or steady.reason or self.doubts.may_be_cleared(levels(group, slots))
        )
        seen = int(np.count_nonzero(overdue.has_event))
        reason = reason or self.doubts.older_released(overdue, longest, seen)
        held = alive.of(alive.birth >= growths[0])
        if is_older:
            held = _alike(group.of(group.death == slots), overdue)
        reason = reason or self.doubts.was_thinned(alive) or self.doubts.freed_at_end(held)
        level = np.cumsum(np.bincount(overdue.birth, overdue.size_bytes, slots))[growths]
        return self._growth("kept", reason, growths, level, held, overdue, is_older)

    def _replaced(self, group: Lives) -> Growth | None:
        # Sizes of blocks go up and down: a block of the cache may be larger than what is requested.
        slots, level = self.seen.slots, levels(group, self.seen.slots, requested=True)
        born = group.of(group.birth >= 0)
        doubt = self.doubts.older_released(born, 0, len(_rises(level)[1]))
        if doubt:  # if these blocks are of the line, it grew by less
            death, size_bytes = self.doubts.older_like(born)
            less = level + totals(0 * death, death, size_bytes, slots)
            if found := self._rising(group, born, less, ""):
                return replace(found, is_older=self.seen.begins_late)
        return self._rising(group, born, level, doubt)

    def _rising(self, group: Lives, born: Lives, level: Column, doubt: str) -> Growth | None:
        slots, alive = self.seen.slots, group.of(group.death == self.seen.slots)
        floor, growths = _rises(level)
        fall = np.maximum.accumulate(level) - level
        if len(growths) < 3:
            return None
        grown, most_fall = int(floor[-1] - floor[growths[0] - 1]), int(fall.max(initial=0))
        if steadiness(growths, slots, slots).reason or grown <= 2 * most_fall:
            return None
        if largest_deviation(level[growths[0] :]) > grown * max(0.15, 1.5 / len(growths)):
            return None
        reason = self.seen.doubt or self.doubts.volume_grows(born)
        reason = reason or self.doubts.may_be_cleared(level) or doubt
        # Blocks of several steps were added rather than replaced.
        kind: Literal["kept", "replaced"] = (
            "kept" if len(np.unique(alive.birth)) > 2 else "replaced"
        )
        followed_by = self._successors(alive) if kind == "replaced" else np.zeros(0, np.int64)
        if not len(followed_by):
            reason = reason or self.doubts.freed_at_end(alive)
        level = floor[growths]
        newer = alive.of(alive.birth >= 0)
        names, holder = holder_names(self.seen.strings, newer.holder)
        main = main_holder(self.seen.strings, newer.holder, newer.size_bytes)
        part = newer.of(holder == names.index(main) if main else np.zeros(len(newer), bool))
        births = np.unique(part.birth)
        # What else has blocks of the line may be bounded. A queue releases its oldest ones.
        is_part = part.size_bytes.sum() < _MOST_OF_LINE * newer.size_bytes.sum()
        if kind == "kept" and len(births) > 2 and is_part:
            growths, alive, born = births, part, part
            level = np.cumsum(np.bincount(part.birth, part.size_bytes, slots))[growths]
        elif growths[0] == 1 and not self.seen.begins_late and 2 * floor[0] <= floor[2]:
            growths, level = np.append(0, growths), np.append(floor[0], level)
        growth = self._growth(kind, reason, growths, level, alive, born, False)
        if self.seen.later is None or not len(followed_by):
            return growth
        heirs = self.seen.later.of(followed_by)
        keeper = main_holder(self.seen.strings, heirs.holder, heirs.size_bytes)
        if keeper is not None and self.seen.later_is_of_model[followed_by].all():
            keeper = _of_model(keeper)
        return replace(growth, kept_by=keeper)

    def _successors(self, alive: Lives) -> Column:
        """Return which of the later blocks the same lines made, none of them smaller: int64.

        Then blocks that were released after the last slot were replaced once more.
        """
        later, site = self.seen.later, self.seen.site
        if later is None:
            return np.zeros(0, np.int64)
        is_same = np.isin(site[later.stack], site[alive.stack])
        return np.flatnonzero(
            is_same & (later.requested_bytes >= alive.requested_bytes.max(initial=0))
        )

    def _growth(
        self,
        kind: Literal["kept", "replaced"],
        reason: str,
        growths: Column,
        level: Column,
        held: Lives,
        suspects: Lives,
        is_older: bool,
    ) -> Growth:
        position = self.seen.position[growths]
        line = theil_sen(position, level.astype(np.float64))
        held_bytes = int(held.size_bytes.sum())
        reason = reason or self.doubts.grew_shortly(held_bytes, line.slope)
        phases = np.unique(suspects.phase)
        frames = self._shared_frames(suspects)
        kept_by, kept_bytes = common_holder(self.seen.strings, held.holder, held.size_bytes), None
        if kept_by is None:
            kept_by, kept_bytes = self.seen.keeper_before(frames)
        first = int(position[0])
        if is_older and self.seen.has_steps and len(older := held.birth_step[held.birth < 0]):
            first = int(older.min()) or first
        count = len(growths) if kind == "replaced" else len(np.unique(held.birth[held.birth >= 0]))
        return Growth(
            verdict="unknown" if reason else "leak",
            reason=reason,
            kind=kind,
            frames=frames,
            phase=self.seen.strings[int(phases[0])] if len(phases) == 1 else None,
            bytes_per_step=line.slope,
            least_bytes_per_step=line.least,
            most_bytes_per_step=line.most,
            growths=count,
            period_steps=float(np.median(np.diff(position))),
            first_step=first if self.seen.has_steps else None,
            is_older=is_older and first == int(position[0]),
            held_bytes=held_bytes,
            blocks=len(held),
            kept_by=kept_by,
            kept_bytes=kept_bytes,
        )

    def _release(self, group: Lives, reason: str) -> Release:
        most = int(levels(group, self.seen.slots).max())
        return Release(self._shared_frames(group), most, reason)

    def _is_confirmed(self, older: int, growths: int, end: int) -> bool:
        """Return whether blocks of missing steps confirm the rate of rare growths."""
        expected = growths / end * (float(self.seen.position[0]) - 1)
        is_as_many = 0.6 * expected <= older <= 1.6 * expected
        is_enough = growths >= 3 and growths + older >= _LEAST_OLDER
        return self.seen.slots >= LEAST_SLOTS and self.seen.has_steps and is_as_many and is_enough


def _rises(level: Column) -> tuple[Column, Column]:
    """Return the least that memory had from each slot on, and the slots in which that grew."""
    floor = np.minimum.accumulate(level[::-1])[::-1]
    return floor, np.flatnonzero(np.diff(floor) > 0) + 1


def _common(paths: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in levels)


def _item(holder: str) -> str:
    """Return the item of a variable that has what an object keeps; "" if it is in none."""
    path, _, root = holder.partition(" of ")
    variable, is_item, rest = path.partition("[")
    return f"{variable}[{rest.partition(']')[0]}] of {root}" if is_item and root else ""


def _of_model(names: str) -> str:
    return names if is_of_optimizer(names) else f"{OF_MODEL}'s {names}"


def _alike(lives: Lives, others: Lives) -> Lives:
    """Leave out blocks that are smaller or larger than all of the others."""
    size = others.size_bytes
    return lives.of((lives.size_bytes >= size.min()) & (lives.size_bytes <= size.max()))


def _without_set_up(alive: Lives) -> Lives:
    """Leave out the set-up: blocks of other sizes, in a first slot that has far more bytes."""
    is_first = alive.birth == 0
    by_slot = np.bincount(alive.birth, alive.size_bytes) if len(alive) else np.zeros(0)
    others = by_slot[1:][by_slot[1:] > 0]
    if len(others) and is_first.any() and by_slot[0] > 4 * np.median(others):
        return alive.of(~is_first | np.isin(alive.size_bytes, alive.size_bytes[~is_first]))
    return alive
