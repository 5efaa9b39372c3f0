"""Why memory that grew may be no leak: each doubt is a reason, or "" if there is none."""

import numpy as np

from pytracer.analysis.leaks.growth import Lives, Observation, theil_sen
from pytracer.reading.snapshot import Column
from pytracer.text import size

_CERTAIN = 16
"""How many times longer than before its only fall memory has grown since, if it surely leaks."""

_LEAST_STAYING = 0.1
"""How much stayed when memory fell, in parts of what was released, if that was of another list."""

_LEAST_PART = 4
"""Memory must have grown for the quarter of a run: that of a buffer is released sooner or later."""


class Doubts:
    """The doubts about the growths on one device."""

    def __init__(self, seen: Observation) -> None:
        """Find what the program holds all the time."""
        self._seen = seen
        lives = seen.lives
        # What a program holds all the time, such as its model.
        self._is_background = (lives.death == seen.slots) & (lives.birth <= seen.slots // 3)
        self._is_background &= ~seen.is_workspace

    def grew_shortly(self, held_bytes: int, bytes_per_step: float) -> str:
        """Return a doubt if memory has grown for a small part of the run, as a buffer may."""
        total = float(self._seen.position[-1])
        grew = held_bytes / max(bytes_per_step, 1.0)
        if not self._seen.has_steps or grew >= total / _LEAST_PART:
            return ""
        return f"it has grown for only about {round(grew):,} of {round(total):,} steps"

    def older_like(self, suspects: Lives) -> tuple[Column, Column]:
        """Return the slot of the release and the size of older blocks that may be of the group."""
        death, sizes = self._seen.older_death, self._seen.older_bytes
        least, most = suspects.size_bytes.min(initial=0), suspects.size_bytes.max(initial=0)
        is_alike = (sizes >= least) & (sizes <= most)
        return death[is_alike], sizes[is_alike]

    def older_released(self, suspects: Lives, longest: int, count: int) -> str:
        """Return a doubt if older blocks that may be of the same group were released late."""
        released = int(np.count_nonzero(self.older_like(suspects)[0] > max(longest, 1)))
        if released < 0.25 * count:
            return ""
        if count == 0:
            return "no step with complete events has such blocks"
        return (
            f"{released} blocks of these sizes, allocated before the file's first event, were "
            "released; the line that allocated them is unknown"
        )

    def was_thinned(self, alive: Lives) -> str:
        """Return a doubt if earlier steps kept less than those whose events the file has.

        So it is if every second item of a cache goes whenever it is full.
        """
        first, position = self._seen.events_from, self._seen.position
        if not first:
            return ""
        earlier = alive.birth[~alive.has_event]
        begin = position[earlier.min()] if len(earlier) else first
        rate = np.count_nonzero(alive.has_event) / (position[-1] + 1 - first)
        if len(earlier) >= 0.75 * rate * (first - begin) - 2:
            return ""
        return "more is kept from recent steps than from earlier ones, as in a limited cache"

    def may_be_cleared(self, level: Column) -> str:
        """Return a doubt if memory fell: nobody knows how long the next epoch or text is."""
        most = int((np.maximum.accumulate(level) - level).max(initial=0))
        falls = np.flatnonzero(-np.diff(level) > most / 2) + 1
        if not len(falls):
            return ""
        last = level[falls[-1] :]
        grown, before = int(last[-1] - last[0]), int(last.min() - level.min())
        rises = np.count_nonzero(np.diff(level[: falls[-1]]) > 0)
        # What had grown before stayed, so that it is of another list; or nothing had grown.
        is_certain = len(falls) == 1 and grown >= _CERTAIN * most
        if is_certain or before > _LEAST_STAYING * most or rises < 2:
            return ""
        often = "once, by" if len(falls) == 1 else f"{len(falls)} times, by up to"
        return f"it fell {often} {size(most)}, has grown by {size(grown)} since, and may fall again"

    def freed_at_end(self, suspects: Lives) -> str:
        """Return a doubt if the blocks were released after the last step, but the others not.

        Or if a part of them was while the program went on: an epoch's list is replaced by the next.
        """
        lives, is_old = self._seen.lives, suspects.birth <= self._seen.slots // 3
        for of_suspects, of_all, least in (
            (suspects.is_freed_later, lives.is_freed_later, 0.5),
            (suspects.is_freed_early, lives.is_freed_early, 0.25),
        ):
            others = _bytes_of(lives, self._is_background) - _bytes_of(suspects, is_old)
            freed = _bytes_of(lives, self._is_background & of_all)
            freed -= _bytes_of(suspects, is_old & of_suspects)
            # Else the end of the program released everything.
            is_alone = others <= 0 or freed < least * others
            if is_alone and _bytes_of(suspects, of_suspects) >= least * suspects.size_bytes.sum():
                return "it was freed after the last step, like a buffer that these steps use"
        return ""

    def volume_grows(self, group: Lives) -> str:
        """Return a doubt if the other allocations grow as well, as with growing batches."""
        if self._seen.volume_bytes is None:
            return "the sizes of the program's other allocations are unknown"
        own = np.bincount(group.birth, group.size_bytes, self._seen.slots)
        others = (self._seen.volume_bytes - own)[1:]
        line = theil_sen(np.arange(float(len(others))), others)
        if line.least > 0 and line.slope * len(others) > 0.05 * np.median(others):
            return "the program's other allocations grow as well, as with growing batches"
        return ""


def _bytes_of(lives: Lives, chosen: Column) -> int:
    return int(lives.size_bytes[chosen].sum())
