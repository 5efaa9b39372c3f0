"""The statistics that tell a leak from memory that is released later, or that stops growing.

A group of blocks is observed over consecutive slots: the complete steps of a file, slices of it, or
several files. A block that is alive at the end of the last slot is accused only if it has outlived
what its group's own released blocks lived, and if such blocks were born steadily over the slots.

A step of a large model has ten thousand allocations, so the ring has the events of a few steps. Of
earlier steps, the blocks that are still there are searched: live blocks carry the step in which
they were allocated, and those of a leak are of all steps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pytracer.analysis.call_sites import ProgramFiles, is_programs_frame
from pytracer.analysis.history import totals
from pytracer.analysis.holder_names import holder_names, main_holder
from pytracer.reading.metadata import KeptMemory
from pytracer.reading.snapshot import Column, Frame

LEAST_SLOTS = 8  # the least number of slots from which a leak is concluded

LEAST_GROWTHS = 5  # the least number of slots with growth from which a leak is concluded

_MOST_POINTS = 200  # the number of points of a line of which all pairs are compared


@dataclass(frozen=True, eq=False)
class Lives:
    """Blocks that outlived the slot in which they were born; columns of equal length."""

    birth: Column  # int64, the slot of the allocation; -1: before the first slot
    # int64, the slot of the release; the number of slots: alive at the end of the last.
    death: Column
    size_bytes: Column  # int64
    requested_bytes: Column  # int64; the allocator may give up to 1 MiB more to a block
    stack: Column  # int64, a number that identifies the stack
    phase: Column  # int64, a number that identifies the phase
    is_freed_later: Column  # bool, whether the block was released after the end of the last slot
    is_freed_early: Column  # bool, whether the program allocated more after that
    # int64, a number that identifies the Python object that keeps the block, or the parameter or
    # buffer that has it; 0: unknown.
    holder: Column
    # bool, whether the file has the allocation, and with it all that was released.
    has_event: Column
    birth_step: Column  # int64, the step of the allocation, of blocks older than the file; else 0

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.birth)

    def of(self, chosen: Column) -> "Lives":
        """Return the chosen blocks."""
        return Lives(*(column[chosen] for column in vars(self).values()))

    def by(self, keys: Column) -> Iterator["Lives"]:
        """Yield the blocks of each key, in the order of keys."""
        order = np.argsort(keys, kind="stable")
        edges = np.flatnonzero(np.diff(keys[order])) + 1
        return (self.of(chosen) for chosen in np.split(order, edges) if len(chosen))


@dataclass(frozen=True, eq=False)
class Observation:
    """What was observed on one device."""

    lives: Lives  # the blocks that outlived a slot
    site: Column  # int64, for each stack a number that identifies its call site
    # Returns the frames of a stack, from the call site outwards; () for an empty stack.
    frames: Callable[[int], tuple[Frame, ...]]
    files: ProgramFiles
    # bool, whether a model or an optimizer has the block at the end. Gradients and states of an
    # optimizer that are made late are no leak: the parameters bound them.
    is_owned: Column
    is_of_model: Column  # bool, whether the block is a parameter or a buffer at the end
    # bool, whether cuBLAS has the block, which the end of a program does not free.
    is_workspace: Column
    slots: int
    position: Column  # float64, the position of each slot: its step, or its time in seconds
    has_steps: bool  # whether the slots are steps
    begins_late: bool  # whether the steps before the first slot are missing
    doubt: str  # why no growth can certainly be a leak; "" if one can
    # The first step of which all releases are known; 0: they are of all slots. Of blocks that were
    # released in an earlier step, nothing is.
    events_from: int = 0
    # int64, the requested bytes of all allocations in each slot; None if unknown.
    volume_bytes: Column | None = None
    # The blocks that were born after the last slot and are alive at the end of the file; None if
    # there are none.
    later: Lives | None = None
    # bool, whether each of them is a parameter or a buffer.
    later_is_of_model: Column = field(default_factory=lambda: np.zeros(0, bool))
    # int64, the slot of the release and the size of each block that is older than the first slot,
    # whose stack is unknown.
    older_death: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    older_bytes: Column = field(default_factory=lambda: np.zeros(0, np.int64))
    kept_before: Sequence[KeptMemory] = ()  # what objects kept at an earlier step
    strings: Sequence[str] = ("",)  # the texts by the numbers of `Lives.phase` and `Lives.holder`

    def keeper_before(self, frames: Sequence[Frame]) -> tuple[str | None, int | None]:
        """Return what kept most memory of a call site at an earlier step, and the bytes of it.

        Args:
            frames: The call site and its callers in the program, as of `Growth`.
        """
        rows = []
        for row in self.kept_before:
            site, *callers = (Frame(*frame) for frame in row.frames)
            path = [site, *(each for each in callers if is_programs_frame(each, self.files))]
            shared = min(len(path), len(frames))
            if frames and path[:shared] == [*frames[:shared]]:
                rows.append(row)
        texts = [row.holder for row in rows]
        sizes = np.array([row.size_bytes for row in rows], np.int64)
        name = main_holder(texts, np.arange(len(rows)), sizes)
        names, group = holder_names(texts, np.arange(len(rows)))
        if name is None:
            return None, None
        return name, int(sizes[group == names.index(name)].sum())


class Line(NamedTuple):
    """The slope of points: the Theil-Sen estimate and its 95% confidence interval."""

    slope: float
    least: float
    most: float


def theil_sen(x: Column, y: Column) -> Line:
    """Return the slope of at least two points with distinct `x`."""
    if len(x) > _MOST_POINTS:
        chosen = np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(np.int64)
        x, y = x[chosen], y[chosen]
    first, second = np.triu_indices(len(x), 1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first]))
    points, pairs = len(x), len(slopes)
    # Sen's interval: the ranks that Kendall's statistic leaves in 95% of samples without a trend.
    width = 1.96 * math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    least = max(math.floor((pairs - width) / 2), 0)
    most = min(math.ceil((pairs + width) / 2), pairs - 1)
    return Line(float(np.median(slopes)), float(slopes[least]), float(slopes[most]))


def longest_life(lives: Lives, slots: int) -> int:
    """Return how many slots the longest-lived released block lived; 0 without one."""
    released = (lives.birth >= 0) & (lives.death < slots)
    return int((lives.death - lives.birth)[released].max(initial=0))


class Steadiness(NamedTuple):
    """Why growths are not spread over the slots as those of a leak are; "" if they are.

    `is_open`: more slots could show a leak, because growth so far is as that of a leak.
    """

    reason: str
    is_open: bool = False


def steadiness(growths: Column, end: int, slots: int) -> Steadiness:
    """Return whether growths are spread steadily from the first one to the slot `end`.

    Args:
        growths: The slots with growth: int64, ascending, distinct, at least one.
        end: The slot after the last one in which growth would count.
    """
    count, first, last = len(growths), int(growths[0]), int(growths[-1])
    gaps = np.diff(growths)
    largest = int(gaps.max(initial=1))
    if count < 3:
        return Steadiness("it grew in fewer than three steps")
    if end - 1 - last > 1.5 * largest:
        return Steadiness("it stopped growing")
    third = (end - first) / 3
    early = int(np.count_nonzero(growths < first + third))
    late = int(np.count_nonzero(growths >= end - third))
    if late + 1 < 0.6 * early:
        is_open = late + 1 > 0.35 * early
        return Steadiness("its growth slows down, as with a cache that fills", is_open)
    if count < LEAST_GROWTHS:
        is_regular = largest <= 2 * int(gaps.min())
        return Steadiness(f"it grew in only {count} steps", is_regular)
    if slots < LEAST_SLOTS:
        return Steadiness(f"only {slots} steps were observed", True)
    return Steadiness("")


def levels(lives: Lives, slots: int, *, requested: bool = False) -> Column:
    """Return the bytes, or the requested ones, of the blocks alive at each slot's end: int64."""
    begin, end = np.maximum(lives.birth, 0), np.clip(lives.death, 0, slots)
    count_bytes = lives.requested_bytes if requested else lives.size_bytes
    return totals(begin, end, count_bytes, slots)


def is_level(lives: Lives, first: int, slots: int) -> bool:
    """Return whether blocks do not take more memory in the second half of the slots after `first`.

    A heap of the best samples keeps some for ever, and releases another one for each.
    """
    level = levels(lives, slots)[(first + slots) // 2 :]
    quarter = len(level) // 4
    early, late = level[quarter : 2 * quarter], level[len(level) - quarter :]
    return quarter > 1 and all(of(late) <= of(early) for of in (np.min, np.median, np.max))


def largest_deviation(level: Column) -> float:
    """Return the largest distance of a level from the straight line that fits it."""
    x, y = np.arange(float(len(level))), level.astype(np.float64)
    rest = y - theil_sen(x, y).slope * x if len(level) > 1 else y
    return float(np.abs(rest - np.median(rest)).max(initial=0.0))
