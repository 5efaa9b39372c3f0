"""The requests of a program at other sizes, and how an allocator would serve them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytracer.analysis.requests import ALLOCATE, FREE, LEAVE, Recording
from pytracer.errors import PytracerError
from pytracer.fitting.alignment import (
    Recorded,
    check_is_same_program,
    matches,
    matches_between_steps,
)
from pytracer.fitting.growth import MISSING, Growth, growth_terms
from pytracer.fitting.sizes import Sizes, points_of
from pytracer.reading.snapshot import Column
from pytracer.simulator.rules import AllocatorRules
from pytracer.simulator.simulate import Limits, Simulated, simulate_recording

NO_LIMITS = Limits(None, None)


@dataclass(frozen=True)
class Peak:
    """The highest usage of a part of the program.

    Attributes:
        allocated_bytes: The most bytes of blocks, as `max_memory_allocated()` of torch returns it.
        reserved_bytes: The most bytes of segments, as `max_memory_reserved()` returns it.
    """

    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, eq=False)
class _Varying:
    """The requests whose sizes are others in each step, so that they depend on values.

    Attributes:
        rows: The allocations of the base.
        powers: For each, the powers of the term in proportion to which the sizes grow.
        usual: For each, the bytes for a term of 1.
        ratio: For each, how many times as large it may be in another step.
    """

    rows: Column
    powers: Column
    usual: Column
    ratio: Column


class Program:
    """The requests of a program, at any sizes of its data.

    Attributes:
        base: The largest recording, whose order of requests is that of all predictions.
        variables: The names of the sizes in which the recordings differ.
        growth: How the allocations of the base grow.
        unmatched: By path, the allocations that the base does not have.
        unseen: The allocations of the base that no other recording has: int64. They are among
            those that no recording confirms.
    """

    def __init__(self, files: Sequence[Recorded], variables: Sequence[str]) -> None:
        """Match the requests of recordings.

        Raises:
            PytracerError: They are of different programs.
        """
        points = points_of([file.sizes for file in files], variables)
        self.variables, self._points = list(variables), points
        largest = int(np.argmax(np.prod(points, axis=1)))
        self.base = files[largest]
        self._count = self.base.steps[-1]
        sizes = np.full((len(files), self._count), MISSING)
        self._matched: list[Column] = []
        self.unmatched: dict[str, int] = {}
        for i, file in enumerate(files):
            if i == largest:
                found = np.arange(self._count)
            else:
                found = matches(file, self.base)[: self._count]
                check_is_same_program(file, self.base, found)
                self.unmatched[file.path] = file.steps[-1] - int(np.count_nonzero(found >= 0))
            self._matched.append(found)
            sizes[i, found >= 0] = file.size_bytes[found[found >= 0]]
        others = np.delete(sizes, largest, axis=0)
        is_unseen = np.all(others == MISSING, axis=0) & (len(files) > 1)
        self.unseen = np.flatnonzero(is_unseen)
        self.growth = Growth(points, sizes)
        self._varying = self._find_varying(files, sizes)
        self._requests = self._cut()

    def _cut(self) -> Recording:
        """Return the recording up to the end of the last step."""
        recording, end = self.base.recording, self.base.ends[-1]
        requests = recording.requests
        columns = ("kind", "block", "size_bytes", "stream", "pool", "event")
        cut = replace(requests, **{name: getattr(requests, name)[:end] for name in columns})
        return replace(recording, requests=cut)

    def _find_varying(self, files: Sequence[Recorded], sizes: Column) -> _Varying:
        """Return the requests whose sizes depend on values.

        Two steps of one recording have equal sizes, unless a request depends on values. Then all
        requests of the same stack count as such.
        """
        key, points = self.base.key[: self._count], self._points
        is_varying = np.zeros(self._count, bool)
        is_varying[self.growth.unfitted] = True
        ratio = np.ones(int(key.max(initial=0)) + 1)
        for file in files:
            size_bytes = file.size_bytes
            for step in range(1, len(file.steps) - 2):
                one, two = matches_between_steps(file, step, step + 1)
                differs = size_bytes[one] != size_bytes[two]
                one, two = one[differs], two[differs]
                is_varying |= np.isin(key, file.key[one])
                if file is self.base:
                    times = size_bytes[one] / size_bytes[two]
                    np.maximum.at(ratio, key[one], np.maximum(times, 1 / times))
        rows = np.flatnonzero(is_varying)
        base = int(np.argmax([file is self.base for file in files]))
        powers = np.zeros((len(rows), points.shape[1]), np.int64)
        terms = growth_terms(points.shape[1])
        values = np.column_stack([term.at(points) for term in terms])
        for each in np.unique(key[rows]).tolist():
            own = key[rows] == each
            present = np.all(sizes[:, rows[own]] != MISSING, axis=1)
            sums = np.where(sizes == MISSING, 0, sizes)[:, rows[own]].sum(axis=1)
            share = sums[present, None] / values[present]
            powers[own] = terms[int(np.argmin(share.max(axis=0) / share.min(axis=0)))].powers
        term_of_base = np.prod(points[base] ** powers, axis=1)
        # What no polynomial fits may vary as much as what is seen to vary most.
        found = ratio[key[rows]]
        found[found == 1] = ratio.max(initial=1)
        return _Varying(rows, powers, sizes[base, rows] / term_of_base, found)

    @property
    def varying(self) -> Column:
        """The allocations of the base whose sizes depend on values: int64."""
        return self._varying.rows

    @property
    def unchecked(self) -> Column:
        """The allocations of the base whose growth no recording confirms: int64."""
        return np.setdiff1d(self.growth.unchecked, self.varying)

    @property
    def has_bounds(self) -> bool:
        """Whether requests are not known exactly."""
        return any(len(rows) for rows in (self.unchecked, self.varying))

    def size_bytes(self, sizes: Sizes, which: str = "usual") -> Column:
        """Return the bytes of each allocation: int64.

        Args:
            sizes: The sizes of the data.
            which: "usual"; or "least" or "most", where requests are not known exactly.
        """
        point = points_of([sizes], self.variables)[0]
        if which == "usual":
            found = self.growth.sizes_at(point)
        else:
            found = self.growth.bounds_at(point)[which == "most"]
        varying = self._varying
        values = np.prod(point**varying.powers, axis=1)
        exponent = {"least": -1, "usual": 0, "most": 1}[which]
        found[varying.rows] = varying.usual * values * varying.ratio**exponent
        rounded: Column = np.clip(np.rint(found), 1, 2.0**50).astype(np.int64)
        return rounded

    def requests_at(self, sizes: Sizes, which: str = "usual") -> Recording:
        """Return the base with the requests at other sizes; the arguments are as before."""
        requests = self._requests.requests
        changed = requests.size_bytes.copy()
        changed[self.base.rows[: self._count]] = self.size_bytes(sizes, which)
        return replace(self._requests, requests=replace(requests, size_bytes=changed))

    def simulate(
        self,
        sizes: Sizes,
        rules: AllocatorRules,
        limits: Limits = NO_LIMITS,
        *,
        which: str = "usual",
        with_curve: bool = True,
    ) -> Simulated:
        """Simulate the requests at other sizes."""
        recording = self.requests_at(sizes, which)
        return simulate_recording(recording, rules, limits, with_curve=with_curve)

    def parts(self) -> dict[str, tuple[int, int]]:
        """Return the requests of each part: all, and the first and the last step if there are."""
        ends, complete = self.base.ends, self.base.complete
        found = {"all": (0, ends[-1])}
        if complete >= 1:
            found["first"] = (0, ends[1])
        if complete >= 2:
            found["steady"] = (ends[complete - 1], ends[complete])
        return found

    def peaks(self, done: Simulated) -> dict[str, Peak]:
        """Return the peaks of each part of a simulation."""
        assert done.reserved_bytes is not None
        assert done.allocated_bytes is not None
        end = len(self._requests.requests) if done.failed_request is None else done.failed_request
        found = {}
        for name, (begin, stop) in self.parts().items():
            part = slice(max(begin - 1, 0), min(stop, end))  # from what was held before
            if part.start < part.stop:
                found[name] = Peak(
                    int(done.allocated_bytes[part].max()), int(done.reserved_bytes[part].max())
                )
        return found

    def recorded_peak(self, file: Recorded) -> Peak:
        """Return the peak of a recording, as far as it was compared."""
        usage = file.recording.history.usage
        end, requests = len(usage.allocated_bytes), file.recording.requests
        if file.ends[-1] < len(requests):
            end = int(requests.event[file.ends[-1]]) + 1
        return Peak(int(usage.allocated_bytes[:end].max()), int(usage.reserved_bytes[:end].max()))

    def held_at(self, request: int) -> Column:
        """Return the allocations that the program holds after a request: int64."""
        requests = self._requests.requests
        kind, block = requests.kind[: request + 1], requests.block[: request + 1]
        given = np.zeros(int(requests.block.max(initial=-1)) + 2, bool)
        given[block[(kind == LEAVE) | (kind == FREE)]] = True
        asked = np.flatnonzero(kind == ALLOCATE)
        found: Column = np.flatnonzero(~given[block[asked]])
        return found


def program_of(files: Sequence[Recorded], variables: Sequence[str]) -> Program:
    """Return the program of recordings; see `Program`.

    Raises:
        PytracerError: There is no recording, or they are of different programs.
    """
    if not files:
        raise PytracerError("give at least one recording")
    return Program(files, variables)
