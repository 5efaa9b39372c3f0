"""Which requests of two recordings of a program are the same: by stack, stream and order."""

from typing import NamedTuple

import numpy as np

from pytracer.analysis.requests import ALLOCATE, FAIL, Recording
from pytracer.errors import PytracerError
from pytracer.fitting.sizes import Sizes
from pytracer.reading.snapshot import Column, Snapshot, Stacks
from pytracer.reading.steps import step_boundaries
from pytracer.text import number

_AGREE = 6
"""After a difference, this many requests in a row have to be the same again."""

_LOOK = 20_000
"""How far ahead the same requests are searched."""

_BOTH = 32
"""How many requests of both recordings may be replaced by others at one place."""

_GIVE_UP = 100
"""After so many places without an end of a difference, the rest is different."""


class StackNames:
    """Numbers for stacks that are the same in all recordings: folders and interpreters may differ.

    A frame is known by the last two parts of its file's path, its function and its line.
    """

    def __init__(self) -> None:
        """Begin without any stack."""
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[bytes, str, bytes], int] = {}

    def of(self, stacks: Stacks) -> Column:
        """Return the number of each stack: int32."""
        strings = stacks.strings
        ends = {
            text: "/".join(strings[text].replace("\\", "/").rsplit("/", 2)[-2:])
            for text in np.unique(stacks.filename).tolist()
        }
        columns = (stacks.filename.tolist(), stacks.name.tolist(), stacks.line.tolist())
        frame = np.array(
            [
                self._frames.setdefault((ends[file], strings[name], line), len(self._frames))
                for file, name, line in zip(*columns, strict=True)
            ],
            np.int32,
        )
        frames = frame[stacks.frame].tobytes() if len(frame) else b""
        offsets = (stacks.offsets * frame.itemsize).tolist()
        texts = [frames[offsets[i] : offsets[i + 1]] for i in range(len(stacks))]
        forward, node = stacks.forward.tolist(), stacks.node.tolist()
        return np.array(
            [
                self._stacks.setdefault(
                    (texts[i], strings[node[i]], texts[forward[i]]), len(self._stacks)
                )
                for i in range(len(stacks))
            ],
            np.int32,
        )


class Recorded(NamedTuple):
    """A recording whose requests can be compared with those of others.

    Attributes:
        snapshot, recording: The file, and the requests in it.
        sizes: The sizes of the program's data.
        rows: int64, the allocations among the requests.
        key: int32, by allocation, what has to be the same: the stack, and whether the stream is the
            default one.
        steps: The allocations before each boundary of a step: 0, those before the end of the first
            step, and so on, and at last all; [0, all] without steps.
        ends: The same, counted in requests.
        complete: How many of these parts are complete steps; what follows the last step is none.
    """

    snapshot: Snapshot
    recording: Recording
    sizes: Sizes
    rows: Column
    key: Column
    steps: list[int]
    ends: list[int]
    complete: int

    @property
    def size_bytes(self) -> Column:
        """The requested bytes of each allocation: int64."""
        found: Column = self.recording.requests.size_bytes[self.rows]
        return found

    @property
    def path(self) -> str:
        """The file."""
        return self.snapshot.path


def recorded(snapshot: Snapshot, recording: Recording, sizes: Sizes, names: StackNames) -> Recorded:
    """Return a recording whose requests can be compared.

    Raises:
        PytracerError: The recording lacks the beginning of the program, or ran out of memory.
    """
    requests, path = recording.requests, snapshot.path
    if requests.older_blocks or not recording.starts_empty:
        raise PytracerError(
            f"{path} lacks the beginning of the program: memory was in use before its first event. "
            "Record from the beginning, with a ring that keeps all events "
            "(PYTRACER_TRACE_ALLOC_MAX_ENTRIES) and without a choice of steps"
        )
    if np.any(requests.kind == FAIL):
        raise PytracerError(
            f"{path} ran out of memory, so it lacks what the program would have requested next: "
            "record a size that fits"
        )
    rows = np.flatnonzero(requests.kind == ALLOCATE)
    event = requests.event[rows]
    stack = names.of(snapshot.stacks)[recording.trace.stack[event]]
    key = (2 * stack + (requests.stream[rows] != 0)).astype(np.int32)
    begins = [first for _, first in step_boundaries(snapshot, recording.device)][1:]
    steps = [0, *np.searchsorted(event, begins).tolist(), len(rows)]
    ends = [0, *np.searchsorted(requests.event, begins).tolist(), len(requests)]
    return Recorded(snapshot, recording, sizes, rows, key, steps, ends, len(begins))


def common_steps(files: list[Recorded]) -> list[Recorded]:
    """Return the recordings with the steps that all have.

    What follows the last step is left out, unless all have equally many steps.

    Raises:
        PytracerError: Some recordings have steps, and one has no complete step.
    """
    least = min(file.complete for file in files)
    if all(file.complete == least for file in files):
        return files
    if least == 0:
        one = next(file for file in files if file.complete == 0)
        raise PytracerError(
            f"{one.path} has no complete step, and others have some: record equally many steps"
        )
    return [
        file._replace(steps=file.steps[: least + 1], ends=file.ends[: least + 1], complete=least)
        for file in files
    ]


def matches(first: Recorded, second: Recorded) -> Column:
    """Return for each allocation of `second` that of `first` which is the same; -1: none is."""
    found = np.full(len(second.rows), -1)
    for step in range(len(second.steps) - 1):
        edges = [(file.steps[step], file.steps[step + 1]) for file in (first, second)]
        keys = [
            file.key[begin:end] for file, (begin, end) in zip((first, second), edges, strict=True)
        ]
        in_first, in_second = aligned(*keys)
        found[in_second + edges[1][0]] = in_first + edges[0][0]
    return found


def matches_between_steps(file: Recorded, step: int, other: int) -> tuple[Column, Column]:
    """Return the allocations of two steps of a recording that are the same."""
    begin, other_begin = file.steps[step], file.steps[other]
    one, two = (file.key[file.steps[each] : file.steps[each + 1]] for each in (step, other))
    in_one, in_two = aligned(one, two)
    return in_one + begin, in_two + other_begin


def aligned(first: Column, second: Column) -> tuple[Column, Column]:
    """Return the elements of two sequences that are the same, in their order.

    From the first difference on, elements are skipped in one or both until `_AGREE` are the same.
    """
    pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    i = j = failures = 0
    texts = first.tobytes(), second.tobytes()
    while i < len(first) and j < len(second) and failures < _GIVE_UP:
        same = _same_run(first, second, i, j)
        pairs.append((np.arange(i, i + same), np.arange(j, j + same)))
        i, j = i + same, j + same
        if i == len(first) or j == len(second):
            break
        skipped = _skip(texts, first.itemsize, i, j)
        failures += skipped is None
        i, j = (i + 1, j + 1) if skipped is None else (i + skipped[0], j + skipped[1])
    in_first, in_second = zip(*pairs, strict=True)
    return np.concatenate(in_first), np.concatenate(in_second)


def _same_run(first: Column, second: Column, i: int, j: int) -> int:
    """Return how many elements from two places on are the same."""
    length, chunk = 0, 64
    while True:
        one, two = first[i + length : i + length + chunk], second[j + length : j + length + chunk]
        count = min(len(one), len(two))
        differing = np.flatnonzero(one[:count] != two[:count])
        if len(differing):
            return length + int(differing[0])
        length += count
        if count < chunk:
            return length
        chunk *= 2


def _skip(texts: tuple[bytes, bytes], width: int, i: int, j: int) -> tuple[int, int] | None:
    """Return how many elements of each to skip until both are the same again.

    Args:
        texts: The bytes of both sequences, `width` for each element.
        i, j: Where they differ.
    """
    first, second = texts
    agree = _AGREE * width
    found: list[tuple[int, int]] = []
    for wanted, at, text, place in ((first, i, second, j), (second, j, first, i)):
        pattern = wanted[at * width : at * width + agree]
        end = (place + _LOOK) * width
        here = text.find(pattern, place * width, end)
        while here >= 0 and here % width:
            here = text.find(pattern, here + 1, end)
        if here >= 0:
            distance = here // width - place
            found.append((0, distance) if text is second else (distance, 0))
    nearest = min((sum(each) for each in found), default=2 * _BOTH)
    for total in range(2, min(nearest, 2 * _BOTH)):
        for x in range(1, total):
            here, there = (i + x) * width, (j + total - x) * width
            one, two = first[here : here + agree], second[there : there + agree]
            if one == two and one:
                return x, total - x
    return min(found, key=sum, default=None)


def check_is_same_program(first: Recorded, second: Recorded, matched: Column) -> None:
    """Check that most allocations of the second recording are also in the first.

    Raises:
        PytracerError: Two different programs, with the first line in which they differ.
    """
    end = second.steps[-1]
    count = int(np.count_nonzero(matched[:end] >= 0))
    if 2 * count >= end:
        return
    at = int(np.argmax(matched[:end] < 0))
    raise PytracerError(
        f"{first.path} and {second.path} are of different programs, or of different code: "
        f"{number(count, 'allocation')} of {end:,} are in both. The first that is not is of "
        f"{place_of(second, at)}. Record the same program with other sizes"
    )


def place_of(file: Recorded, allocation: int) -> str:
    """Return the call site of an allocation as text."""
    from pytracer.analysis.call_sites import CallChains
    from pytracer.analysis.frame_text import call_site_text

    event = int(file.recording.requests.event[file.rows[allocation]])
    stack = int(file.recording.trace.stack[event])
    return call_site_text(CallChains(file.snapshot.stacks).site(stack))
