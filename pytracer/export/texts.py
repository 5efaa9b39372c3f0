"""Stacks as texts, bounded in size."""

import itertools
from collections.abc import Callable

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.text import size

_SPARE_TEXT = 2 * 2**20
_MOST_TEXT_EACH = 300


def frame_text(frame: Frame) -> str:
    """Return a frame as tables have it: "file:line function", or a frame without a file's name."""
    return f"{frame.filename}:{frame.line} {frame.name}" if frame.filename else frame.name


def stack_texts(
    snapshot: Snapshot,
    write: Callable[[str, str, int], str],
    separator: str,
    *,
    outermost_first: bool = False,
) -> list[str]:
    """Return each distinct stack as one text; `write(filename, name, line)` returns a frame's.

    Raises:
        PytracerError: See `check_stack_texts`.
    """
    check_stack_texts(snapshot)
    stacks, strings = snapshot.stacks, snapshot.stacks.strings
    columns = (stacks.filename, stacks.name, stacks.line)
    frames = [
        write(strings[filename], strings[name], line)
        for filename, name, line in np.stack(columns, axis=1).tolist()
    ]
    indices, step = stacks.frame.tolist(), -1 if outermost_first else 1
    return [
        separator.join([frames[frame] for frame in indices[begin:end][::step]])
        for begin, end in itertools.pairwise(stacks.offsets.tolist())
    ]


def check_stack_texts(snapshot: Snapshot) -> None:
    """Refuse a snapshot whose frames and stacks would fill the memory when written as texts.

    A file stores a long text once and refers to it in 3 bytes; an export writes it each time.

    Raises:
        PytracerError: The texts have more than 300 characters on average, and 2 Mi in all.
    """
    stacks = snapshot.stacks
    length = np.array([len(text) for text in stacks.strings], np.int64)
    frames = length[stacks.filename] + length[stacks.name]
    for kind, lengths in (("frames", frames), ("stacks", frames[stacks.frame])):
        total = int(lengths.sum())
        if total > _SPARE_TEXT + _MOST_TEXT_EACH * len(lengths):
            raise PytracerError(
                f"{snapshot.path} is refused: written as text, its {kind} would take "
                f"{size(total)}, on average over {_MOST_TEXT_EACH} characters, as no program's do"
            )
