"""The requests of a program at other sizes of its data: those of its largest recording, grown."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.frame_text import call_site_text
from pytracer.analysis.requests import ALLOCATE, FAIL, Recording
from pytracer.errors import PytracerError
from pytracer.fitting.growth import MISSING, Growth
from pytracer.fitting.sizes import GivenSizes, Sizes, points_of, sizes_text
from pytracer.reading.snapshot import Column, Snapshot, Stacks
from pytracer.reading.steps import step_boundaries
from pytracer.simulator.simulate import Limits, Simulated, own_rules, simulate_recording

_NO_LIMITS = Limits(None, None)

_MOST_SIZES = 16  # how many sizes of steps are used: more do not show more

Names = dict[tuple[object, ...], int]  # the numbers of frames and stacks, in all recordings


@dataclass(frozen=True)
class Peak:
    """The highest usage of a program.

    Attributes:
        allocated_bytes: The most bytes of blocks, as `max_memory_allocated()` of torch returns it.
        reserved_bytes: The most bytes of segments, as `max_memory_reserved()` returns it.
    """

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recording, its allocations in steps, and their sizes."""

    snapshot: Snapshot
    recording: Recording
    rows: Column  # int64, the allocations among the requests
    key: Column  # int64, what is equal in all recordings: the stack, and whether the stream is 0
    steps: list[slice]  # the allocations of each complete step, and of what follows the last one
    sizes: list[Sizes]  # of each of them

    @property
    def varies(self) -> bool:
        """Whether the steps have different sizes."""
        return any(each != self.sizes[0] for each in self.sizes)

    @property
    def size_bytes(self) -> Column:
        """The requested bytes of each allocation: int64."""
        found: Column = self.recording.requests.size_bytes[self.rows]
        return found

    def peak(self) -> Peak:
        """Return the peak in the recording."""
        requests, usage = self.recording.requests, self.recording.history.usage
        end = int(requests.event[-1]) + 2
        return Peak(int(usage.allocated_bytes[:end].max()), int(usage.reserved_bytes[:end].max()))


def recorded(snapshot: Snapshot, recording: Recording, given: GivenSizes, names: Names) -> Recorded:
    """Return a recording that can be compared with others; `names` is extended."""
    requests, path = recording.requests, snapshot.path
    if requests.older_blocks or not recording.starts_empty:
        raise PytracerError(
            f"{path} lacks the beginning of the program: memory was in use before its first event. "
            "Record from the beginning, with a ring that keeps all events "
            "(PYTRACER_TRACE_ALLOC_MAX_ENTRIES), and do not select steps"
        )
    begins = [first for _, first in step_boundaries(snapshot, recording.device)][1:]
    ends = [*np.searchsorted(requests.event, begins).tolist(), len(requests)]
    lists = {name: values for name, values in given.items() if isinstance(values, list)}
    failed = [*np.flatnonzero(requests.kind == FAIL).tolist(), len(requests)][0]
    if lists or failed < len(requests):  # what follows the last complete step is left out
        ends = [end for end in ends[:-1] if end <= failed]
        if not ends:
            raise PytracerError(
                f"{path} has no complete step, or ran out of memory, so the program's next "
                "requests are missing: record a size that fits"
            )
        columns = ("kind", "block", "size_bytes", "stream", "pool", "event")
        cut = {name: getattr(requests, name)[: ends[-1]] for name in columns}
        requests = replace(requests, **cut)
    for name, values in lists.items():
        if len(values) < len(ends):
            raise PytracerError(
                f"{path} has {len(ends)} complete steps, but {len(values)} sizes of {name}: give "
                "one size for each complete step, in order"
            )
    rows = np.flatnonzero(requests.kind == ALLOCATE)
    stack = _numbers(snapshot.stacks, names)[recording.trace.stack[requests.event[rows]]]
    sizes = [
        {name: each[i] if isinstance(each, list) else each for name, each in given.items()}
        for i in range(len(ends))
    ]
    return Recorded(
        snapshot=snapshot,
        recording=replace(recording, requests=requests),
        rows=rows,
        key=2 * stack + (requests.stream[rows] != 0),
        steps=[slice(*each) for each in pairwise([0, *np.searchsorted(rows, ends).tolist()])],
        sizes=sizes,
    )


def _numbers(stacks: Stacks, names: Names) -> Column:
    """Return the number of each stack, by the ends of its paths, its functions and its lines.

    Folders and interpreters may differ between recordings.
    """
    strings = stacks.strings
    columns = (stacks.filename.tolist(), stacks.name.tolist(), stacks.line.tolist())
    frames = [
        ("/".join(strings[file].replace("\\", "/").rsplit("/", 2)[-2:]), strings[name], line)
        for file, name, line in zip(*columns, strict=True)
    ]
    numbers = np.array([names.setdefault(each, len(names)) for each in frames], np.int64)
    frame = numbers[stacks.frame]
    texts = [frame[begin:end].tobytes() for begin, end in pairwise(stacks.offsets.tolist())]
    rows = zip(texts, stacks.node.tolist(), stacks.forward.tolist(), strict=True)
    keys = [(text, strings[node], texts[forward]) for text, node, forward in rows]
    return np.array([names.setdefault(each, len(names)) for each in keys], np.int64)


class Program:
    """The requests of a program at any sizes of its data.

    Attributes:
        base: The largest recording, whose order of requests is that of all estimates.
        points: The sizes that were recorded.
        variables: The names of the sizes that differ.
        near: bool, which allocations do not have the bytes that their law says.
        missing: bool, which allocations some recordings lack.
    """

    def __init__(self, files: Sequence[Recorded], variables: Sequence[str]) -> None:
        """Find how each request grows."""

        def amount(sizes: Sizes) -> float:
            return float(np.prod([sizes[name] for name in variables]))

        self.variables = [*variables]
        self.base = base = max(files, key=lambda file: max(map(amount, file.sizes)))
        parts: list[tuple[Recorded, Sizes]] = []  # a recording, and a size of its steps
        for file in files:
            _check_alike(file, base)
            distinct = {tuple(sizes.items()): sizes for sizes in file.sizes}
            ordered = sorted(distinct.values(), key=amount)
            chosen = np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_SIZES)).round()
            parts += [(file, ordered[int(i)]) for i in chosen]
        self.points = [sizes for _, sizes in parts]
        found = np.full((len(parts), len(base.rows)), MISSING)
        for row, (file, sizes) in zip(found, parts, strict=True):
            for step, part in enumerate(base.steps):
                row[part] = _matched(base, part, file, _same_step(base, step, file, sizes))
        alone = (found == MISSING).all(axis=0)  # a step whose size is not among those chosen
        found[-1, alone] = base.size_bytes[alone]
        self._growth = Growth(points_of(self.points, variables), found)
        self.near = self._growth.is_near
        self.missing = (found == MISSING).any(axis=0) & (not base.varies)

    def size_bytes(self, sizes: Sizes) -> Column:
        """Return the bytes of each allocation: int64."""
        found = self._growth.at(points_of([sizes], self.variables)[0])
        rounded: Column = np.clip(np.rint(found), 1, 2.0**50).astype(np.int64)
        return rounded

    def simulate(self, sizes: Sizes, limits: Limits = _NO_LIMITS) -> Simulated:
        """Simulate the requests at other sizes."""
        recording = self.base.recording
        changed = recording.requests.size_bytes.copy()
        changed[self.base.rows] = self.size_bytes(sizes)
        recording = replace(recording, requests=replace(recording.requests, size_bytes=changed))
        found = simulate_recording(recording, own_rules(recording), limits, with_curve=True)
        if limits == _NO_LIMITS and found.failed_request is not None:
            raise PytracerError(f"{sizes_text(sizes)} needs more memory than any device can have")
        return found

    def peak(self, sizes: Sizes) -> Peak:
        """Return the peak at other sizes, without a limit of memory."""
        done = self.simulate(sizes)
        assert done.allocated_bytes is not None
        return Peak(int(done.allocated_bytes.max()), done.peak_reserved_bytes)


def _check_alike(file: Recorded, base: Recorded) -> None:
    paths = f"{file.snapshot.path} and {base.snapshot.path}"
    one, other = (
        (each.name.partition(":")[0], each.torch_version, each.settings)
        for each in (file.recording, base.recording)
    )
    if one != other:
        raise PytracerError(
            f"{paths} have different devices, torch versions or settings: {one} and {other}. The "
            "program may then request a different amount of memory: record all in the same way"
        )
    is_in_both = np.isin(base.key, file.key)
    if 2 * is_in_both.sum() < len(is_in_both):
        stacks, row = base.snapshot.stacks, base.rows[np.argmin(is_in_both)]
        stack = base.recording.trace.stack[base.recording.requests.event[row]]
        raise PytracerError(
            f"{paths} come from different programs, or different code: {is_in_both.sum():,} of "
            f"{len(is_in_both):,} allocations are in both. The first difference is at "
            f"{call_site_text(frame_at(stacks, int(call_sites(stacks)[stack])))}"
        )


def _same_step(base: Recorded, step: int, file: Recorded, sizes: Sizes) -> slice:
    """Return the step of a file with given sizes that is nearest to a step of the base."""
    if file.varies:
        steps = [i for i, each in enumerate(file.sizes) if each == sizes]
        return file.steps[step if file is base and step in steps else steps[-1]]
    last = len(file.steps) - 1
    return file.steps[last if step == len(base.steps) - 1 else min(step, max(last - 1, 0))]


def _matched(base: Recorded, part: slice, file: Recorded, other: slice) -> Column:
    """Return the bytes that a file has for each allocation of a step of the base, or `MISSING`.

    A stack requests in the same order in both. If it requests more often in one, the base's bytes
    are scaled to the sum of the file's. In one recording whose steps differ, they are missing: a
    library allocates its workspace in the first step.
    """
    key, key_there = base.key[part], file.key[other]
    own, there = base.size_bytes[part], file.size_bytes[other]
    order, order_there = np.argsort(key, kind="stable"), np.argsort(key_there, kind="stable")
    first, end = (np.searchsorted(key[order], key[order], side) for side in ("left", "right"))
    begins, ends = (
        np.searchsorted(key_there[order_there], key[order], side) for side in ("left", "right")
    )
    found = np.full(len(key), MISSING)
    is_same = ends - begins == end - first
    place = begins + np.arange(len(key)) - first
    found[order[is_same]] = there[order_there][place[is_same]]
    rest = order[~is_same & (ends > begins)]
    if not file.varies:
        total, total_there = np.bincount(key, own), np.bincount(key_there, there)
        scaled = own[rest] * total_there[key[rest]] / total[key[rest]]
        found[rest] = np.maximum(np.rint(scaled), 1)
    return found
