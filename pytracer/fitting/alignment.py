"""Which requests of two recordings of a program are the same: by stack, stream and order."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.requests import ALLOCATE, FAIL, FREE, LEAVE, Recording
from pytracer.errors import PytracerError
from pytracer.fitting.sequences import aligned, by_growth
from pytracer.fitting.sizes import Sizes
from pytracer.reading.snapshot import Column, Frame, Snapshot, Stacks
from pytracer.reading.steps import step_boundaries

_ALIKE = "devices", "versions of torch", "settings"  # what all recordings have to have in common


class StackNames:
    """Numbers for stacks that are the same in all recordings: folders and interpreters may differ.

    A frame is known by the last two parts of its file's path, its function and its line.
    """

    def __init__(self) -> None:
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
    """A recording whose requests can be compared with those of others."""

    # The file, and the requests in it.
    snapshot: Snapshot
    recording: Recording
    sizes: Sizes  # the sizes of the program's data
    rows: Column  # int64, the allocations among the requests
    # int32, by allocation, what has to be the same: the stack, and whether the stream is the
    # default one.
    key: Column
    # How many allocations come before each end of a step; first 0, at last all of them.
    steps: list[int]
    ends: list[int]  # the same in requests
    complete: int  # how many of these parts are complete steps; what follows the last step is none

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
