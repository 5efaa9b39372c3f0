"""Which requests of two recordings of a program are the same: by stack, stream and order."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, LEAVE, Recording
from pytracer.errors import PytracerError
from pytracer.fitting.sizes import Sizes
from pytracer.reading.snapshot import Column, Frame, Snapshot, Stacks
from pytracer.reading.steps import step_boundaries

_AGREE = 6
"""After a difference, this many requests in a row have to be the same again."""

_LOOK = 20_000
"""How far ahead the same requests are searched."""

_BOTH = 64
"""How many requests, of both recordings together, may be others at one place."""

_MOST_PAIRS = 4_000_000
"""In runs of one stack with more pairs, sizes are not compared."""

_GIVE_UP = 100
"""After so many differences without an end, the rest is different."""


_ALIKE = "devices", "versions of torch", "settings"
"""What all recordings have to have in common."""


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
        strings, known = stacks.strings, self._frames
        ends = {
            text: "/".join(strings[text].replace("\\", "/").rsplit("/", 2)[-2:])
            for text in np.unique(stacks.filename).tolist()
        }
        columns = (stacks.filename.tolist(), stacks.name.tolist(), stacks.line.tolist())
        frames = [
            (ends[file], strings[name], line) for file, name, line in zip(*columns, strict=True)
        ]
        frame = np.array([known.setdefault(each, len(known)) for each in frames], np.int32)
        content = frame[stacks.frame].tobytes()
        offsets = (stacks.offsets * frame.itemsize).tolist()
        texts = [content[begin:end] for begin, end in pairwise(offsets)]
        rows = zip(texts, stacks.node.tolist(), stacks.forward.tolist(), strict=True)
        names = [(text, strings[node], texts[forward]) for text, node, forward in rows]
        numbers = self._stacks
        return np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording whose requests can be compared with those of others.

    Attributes:
        snapshot, recording: The file, and the requests in it.
        sizes: The sizes of the program's data.
        rows: int64, the allocations among the requests.
        key: int32, by allocation, what has to be the same: the stack, and whether the stream is the
            default one.
        steps: How many allocations come before each end of a step; first 0, at last all of them.
        ends: The same in requests.
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
    def path(self) -> str:
        """The file."""
        return self.snapshot.path

    @cached_property
    def size_bytes(self) -> Column:
        """The requested bytes of each allocation: int64."""
        found: Column = self.recording.requests.size_bytes[self.rows]
        return found

    @cached_property
    def stack(self) -> Column:
        """The stack of each allocation."""
        found: Column = self.recording.trace.stack[self.recording.requests.event[self.rows]]
        return found

    def frame(self, allocation: int) -> Frame | None:
        """Return the call site of an allocation; None if it is unknown."""
        stacks = self.snapshot.stacks
        return frame_at(stacks, int(call_sites(stacks)[self.stack[allocation]]))

    def held_at(self, request: int) -> Column:
        """Return the allocations that the program holds after a request: int64."""
        requests = self.recording.requests
        kind, block = requests.kind[: request + 1], requests.block[: request + 1]
        given = block[(kind == LEAVE) | (kind == FREE)]
        found: Column = np.flatnonzero(~np.isin(block[kind == ALLOCATE], given))
        return found

    def with_sizes(self, size_bytes: Column) -> "Recorded":
        """Return the recording with other requested bytes of its allocations: int64."""
        requests = self.recording.requests
        changed = requests.size_bytes.copy()
        changed[self.rows] = size_bytes
        recording = replace(self.recording, requests=replace(requests, size_bytes=changed))
        return replace(self, recording=recording)

    def first_steps(self, count: int) -> "Recorded":
        """Return the recording up to the end of its first steps."""
        allocations, end = self.steps[count], self.ends[count]
        requests = self.recording.requests
        columns = ("kind", "block", "size_bytes", "stream", "pool", "event")
        cut = replace(requests, **{name: getattr(requests, name)[:end] for name in columns})
        return replace(
            self,
            recording=replace(self.recording, requests=cut),
            rows=self.rows[:allocations],
            key=self.key[:allocations],
            steps=self.steps[: count + 1],
            ends=self.ends[: count + 1],
            complete=count,
        )


def recorded(snapshot: Snapshot, recording: Recording, names: StackNames) -> Recorded:
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
    rows = np.flatnonzero(requests.kind == ALLOCATE)
    event = requests.event[rows]
    stack = names.of(snapshot.stacks)[recording.trace.stack[event]]
    key = (2 * stack + (requests.stream[rows] != 0)).astype(np.int32)
    begins = [first for _, first in step_boundaries(snapshot, recording.device)][1:]
    steps = [0, *np.searchsorted(event, begins).tolist(), len(rows)]
    ends = [0, *np.searchsorted(requests.event, begins).tolist(), len(requests)]
    found = Recorded(snapshot, recording, {}, rows, key, steps, ends, len(begins))
    if np.any(requests.kind == FAIL):
        found = found.first_steps(found.complete)
        if found.complete == 0 or np.any(found.recording.requests.kind == FAIL):
            raise PytracerError(
                f"{path} ran out of memory, so it lacks what the program would have requested "
                "next: record a size that fits"
            )
    return found


def _of(file: Recorded) -> tuple[str | None, ...]:
    recording = file.recording
    return recording.name.partition(":")[0], recording.torch_version, recording.settings


def common_steps(files: list[Recorded]) -> list[Recorded]:
    """Return the recordings with the steps that all have.

    What follows the last step is left out, unless all have equally many steps and none ran out of
    memory there.

    Raises:
        PytracerError: Some recordings have steps, and one has no complete step; or they are of
            different devices, versions of torch or settings.
    """
    for file in files[1:]:
        for what, one, other in zip(_ALIKE, _of(files[0]), _of(file), strict=True):
            if one != other:
                raise PytracerError(
                    f"{files[0].path} and {file.path} have different {what}, {one!r} and {other!r},"
                    " under which a program may request other memory: record all in the same way"
                )
    least = min(files, key=lambda file: file.complete)
    if len({(file.complete, len(file.steps)) for file in files}) == 1:
        return files
    if least.complete == 0:
        raise PytracerError(
            f"{least.path} has no complete step, and others have: record equally many steps"
        )
    return [file.first_steps(least.complete) for file in files]


def matches(first: Recorded, second: Recorded) -> Column:
    """Return for each allocation of `second` that of `first` which is the same; -1: none is.

    Raises:
        PytracerError: Most have none: two different programs. The message has the first line.
    """
    if first.snapshot is second.snapshot:  # they were made from one recording
        place = np.minimum(np.searchsorted(first.rows, second.rows), len(first.rows) - 1)
        return np.where(first.rows[place] == second.rows, place, -1)
    found = np.full(len(second.rows), -1)
    for step in range(len(second.steps) - 1):
        in_first, in_second = matches_of_steps(first, step, second, step)
        found[in_second] = in_first
    count = int(np.count_nonzero(found >= 0))
    if 2 * count < len(found):
        raise PytracerError(
            f"{first.path} and {second.path} are of different programs, or of different code: "
            f"{count:,} of {len(found):,} allocations are in both. The first that is not is of "
            f"{call_site_text(second.frame(int(np.argmin(found))))}. Record the same program at "
            "other sizes"
        )
    return found


def matches_of_steps(
    first: Recorded, step: int, second: Recorded, other: int
) -> tuple[Column, Column]:
    """Return the allocations of two steps, of one recording or two, that are the same."""
    one = slice(first.steps[step], first.steps[step + 1])
    two = slice(second.steps[other], second.steps[other + 1])
    keys = first.key[one], second.key[two]
    sizes = first.size_bytes[one], second.size_bytes[two]
    in_first, in_second = by_growth(*keys, *aligned(*keys), sizes)
    return in_first + one.start, in_second + two.start


def aligned(first: Column, second: Column) -> tuple[Column, Column]:
    """Return the elements of two sequences that are the same, in their order.

    From a difference on, elements are skipped in one or both until `_AGREE` are the same.
    """
    pairs = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    i = j = failures = 0
    texts = first.tobytes(), second.tobytes()
    while failures < _GIVE_UP:
        same = _same_run(first[i:], second[j:])
        pairs.append((np.arange(i, i + same), np.arange(j, j + same)))
        i, j = i + same, j + same
        if i == len(first) or j == len(second):
            break
        skipped = _skip(texts, first.itemsize, i, j)
        failures += skipped is None
        i, j = (i + 1, j + 1) if skipped is None else (i + skipped[0], j + skipped[1])
    in_first, in_second = zip(*pairs, strict=True)
    return np.concatenate(in_first), np.concatenate(in_second)


def by_growth(
    first: Column, second: Column, in_first: Column, in_second: Column, sizes: tuple[Column, Column]
) -> tuple[Column, Column]:
    """Return the pairs of `aligned`, in which runs of unequal length are matched by their growth.

    A line may request more where the data are larger: a workspace for each row, or the buffers of
    a reduction. The others are those that grow as requests of other lines do, or do not grow.

    Args:
        first, second, in_first, in_second: The arguments and the results of `aligned`.
        sizes: The bytes of both sequences.
    """
    if len(first) == len(second) == len(in_first):
        return in_first, in_second
    bounds, run = _runs(first, in_first)
    other_bounds, other_run = _runs(second, in_second)
    both = np.column_stack((run, other_run))
    is_new = np.diff(both, axis=0, prepend=-1).any(axis=1)
    run, other_run = both[is_new].T
    length, other_length = np.diff(bounds)[run], np.diff(other_bounds)[other_run]
    is_other = (length != other_length) & (length * other_length <= _MOST_PAIRS)
    for each in (run, other_run):  # what is in several parts stays as it is
        is_other &= np.bincount(each)[each] == 1
    pairs = np.column_stack((in_first, in_second))[~is_other[np.cumsum(is_new) - 1]]
    ratios = np.append(1.0, sizes[1][pairs[:, 1]] / sizes[0][pairs[:, 0]])
    found = [pairs]
    for one, two in zip(run[is_other], other_run[is_other], strict=True):
        i, j = bounds[one], other_bounds[two]
        ratio = sizes[1][j : other_bounds[two + 1]] / sizes[0][i : bounds[one + 1], None]
        same = _longest_common(np.isin(ratio, ratios))
        found.append(np.array(same, np.int64).reshape(-1, 2) + (i, j))
    pairs = np.concatenate(found)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


def _runs(keys: Column, rows: Column) -> tuple[Column, Column]:
    """Return where runs of equal keys begin, at last the end, and the run of each row."""
    bounds = np.append(np.flatnonzero(np.diff(keys, prepend=-1)), len(keys))
    return bounds, np.searchsorted(bounds, rows, "right") - 1


def _longest_common(are_same: Column) -> list[tuple[int, int]]:
    """Return the most pairs of elements of two sequences that are the same, in their order.

    Where as many of both are between two pairs, these are pairs too.

    Args:
        are_same: bool of shape (elements, other elements).
    """
    counts = np.zeros(np.add(are_same.shape, 1), np.int32)
    for i, row in enumerate(are_same):
        best = np.maximum(counts[i, 1:], counts[i, :-1] + row)
        counts[i + 1, 1:] = np.maximum.accumulate(best)
    end = i, j = are_same.shape
    pairs = [end]
    while i and j:
        if counts[i, j] == counts[i - 1, j]:
            i -= 1
        elif counts[i, j] == counts[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    found: list[tuple[int, int]] = []
    begin = 0, 0
    for i, j in reversed(pairs):
        if i - begin[0] == j - begin[1]:
            found += zip(range(begin[0], i), range(begin[1], j), strict=True)
        if (i, j) != end:
            found.append((i, j))
        begin = i + 1, j + 1
    return found


def _same_run(first: Column, second: Column) -> int:
    """Return how many elements are the same from the beginning."""
    length, chunk = 0, 64
    while (count := min(len(first) - length, len(second) - length, chunk)) > 0:
        differs = first[length : length + count] != second[length : length + count]
        if differs.any():
            return length + int(differs.argmax())
        length, chunk = length + count, 2 * chunk
    return length


def _skip(texts: tuple[bytes, bytes], width: int, i: int, j: int) -> tuple[int, int] | None:
    """Return how many elements of each to skip until both are the same again; None: unknown.

    Args:
        texts: The bytes of both sequences, `width` for each element.
        i, j: Where they differ.
    """
    first, second = texts
    found = []
    if (x := _find(first, i, second[j * width : (j + _AGREE) * width], width)) is not None:
        found.append((x, 0))
    if (y := _find(second, j, first[i * width : (i + _AGREE) * width], width)) is not None:
        found.append((0, y))
    nearest = min((sum(each) for each in found), default=_BOTH)
    for total in range(2, min(nearest, _BOTH)):
        for x in range(1, total):
            here, there = (i + x) * width, (j + total - x) * width
            wanted = first[here : here + _AGREE * width]
            if wanted and wanted == second[there : there + _AGREE * width]:
                return x, total - x
    return min(found, key=sum, default=None)


def _find(text: bytes, place: int, pattern: bytes, width: int) -> int | None:
    """Return how far behind a place a pattern begins, in elements; None: it is not near."""
    begin, end = place * width, (place + _LOOK) * width
    found = text.find(pattern, begin, end) if pattern else -1
    while found >= 0 and found % width:
        found = text.find(pattern, found + 1, end)
    return None if found < 0 else (found - begin) // width
