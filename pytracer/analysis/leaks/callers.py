"""Groups of blocks by call site, divided by callers where a call site has several uses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from pytracer.analysis.call_sites import is_programs_frame
from pytracer.analysis.leaks.growth import Lives
from pytracer.analysis.program_files import ProgramFiles
from pytracer.reading.snapshot import Column, Frame


@dataclass(frozen=True, eq=False)
class Callers:
    """The call sites of the stacks of `Lives`, and their callers.

    Attributes:
        site: int64, for each stack a number that identifies its call site.
        frames: Return the frames of a stack, from the call site outwards; () for an empty stack.
        files: The program's source files.
    """

    site: Column
    frames: Callable[[int], tuple[Frame, ...]]
    files: ProgramFiles


def divided(lives: Lives, callers: Callers, by_caller_only: bool) -> list[Lives]:
    """Divide the blocks by the first caller that differs; [] if all are alike.

    Unless `by_caller_only`, blocks with the same callers are divided by the rest of their stacks:
    by what the call site called.
    """
    stacks = np.unique(lives.stack)
    if len(stacks) < 2:
        return []
    paths = [callers.frames(int(stack)) for stack in stacks]
    depth = len(common(paths))
    keys: dict[object, int] = {}
    parts = [keys.setdefault(path[depth : depth + 1] or None, len(keys)) for path in paths]
    if len(keys) == 1:  # the stacks differ only in the frames that the call site called
        return [] if by_caller_only else list(by(lives, lives.stack))
    return list(by(lives, np.array(parts)[np.searchsorted(stacks, lives.stack)]))


def shared_frames(lives: Lives, callers: Callers) -> tuple[Frame, ...]:
    """Return the program's frames that all blocks share, the call site first."""
    shared = common([callers.frames(int(stack)) for stack in np.unique(lives.stack)])
    called_by = (frame for frame in shared[1:] if is_programs_frame(frame, callers.files))
    return (*shared[:1], *called_by)


def common(paths: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return the frames with which all paths begin."""
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    return tuple(level[0] for level in levels)


def by(lives: Lives, keys: Column) -> Iterator[Lives]:
    """Yield the blocks of each key, in the order of keys."""
    order = np.argsort(keys, kind="stable")
    edges = np.flatnonzero(np.diff(keys[order])) + 1
    for chosen in np.split(order, edges):
        if len(chosen):
            yield lives.of(chosen)
