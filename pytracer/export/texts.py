"""Stacks and frames as texts, bounded in size."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Column, Snapshot, Stacks
from pytracer.text import size

_SPARE_TEXT = 2 * 2**20
_MOST_TEXT_EACH = 300


def frame_texts(stacks: Stacks, write: Callable[[str, str, int], str]) -> list[str]:
    """Return each distinct frame as text: `write(filename, name, line)`."""
    strings = stacks.strings
    return [
        write(strings[filename], strings[name], line)
        for filename, name, line in zip(
            stacks.filename.tolist(), stacks.name.tolist(), stacks.line.tolist(), strict=True
        )
    ]


def stack_texts(
    stacks: Stacks, frames: Sequence[str], separator: str, outermost_first: bool = False
) -> list[str]:
    """Return each distinct stack as one text, given the texts of the distinct frames."""
    indices, offsets = stacks.frame.tolist(), stacks.offsets.tolist()
    step = -1 if outermost_first else 1
    return [
        separator.join([frames[frame] for frame in indices[begin:end][::step]])
        for begin, end in itertools.pairwise(offsets)
    ]


def check_stack_texts(snapshot: Snapshot) -> None:
    """Refuse a snapshot whose frames and stacks would fill the memory when written as texts.

    Raises:
        PytracerError: The texts have more than 300 characters on average, and 2 Mi in all.
    """
    stacks = snapshot.stacks
    length = np.array([len(text) for text in stacks.strings], np.int64)
    frames = length[stacks.filename] + length[stacks.name]
    _check_texts(snapshot, "frames", frames)
    _check_texts(snapshot, "stacks", frames[stacks.frame])


def _check_texts(snapshot: Snapshot, kind: str, lengths: Column) -> None:
    """Refuse texts that are together far longer than those of any program.

    A file stores a long text once and refers to it in 3 bytes; an export writes it each time.

    Args:
        snapshot: The snapshot with the texts.
        kind: What the texts are, as in "stacks".
        lengths: The length of each text.
    """
    length = int(lengths.sum())
    if length > _SPARE_TEXT + _MOST_TEXT_EACH * len(lengths):
        raise PytracerError(
            f"{snapshot.path} is refused: its {kind} would take {size(length)} as texts, and no "
            f"program's names are longer than {_MOST_TEXT_EACH} characters on average"
        )
