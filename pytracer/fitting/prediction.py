"""The requests of a program at other sizes, and how an allocator would serve them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.requests import ALLOCATE, FREE, Recording
from pytracer.errors import PytracerError
from pytracer.fitting.alignment import Recorded, matches, matches_of_steps
from pytracer.fitting.growth import MISSING, Growth, growth_terms
from pytracer.fitting.sizes import Sizes, points_of, sizes_text
from pytracer.reading.snapshot import Column
from pytracer.simulator.rules import AllocatorRules
from pytracer.simulator.simulate import Limits, Simulated, simulate_recording

NO_LIMITS = Limits(None, None)

LEAST, USUAL, MOST = -1, 0, 1  # which bytes are meant of requests that are not known exactly


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
    """The requests that depend on values: their sizes are others in each step."""

    rows: Column  # the allocations of the base
    powers: Column  # the powers of the variables with which each grows
    unit_bytes: Column  # the bytes of each for a product of these powers of 1
    ratio: Column  # how many times as large each may be


class Program:
    """The requests of a program, at any sizes of its data.

    Attributes:
        base: The largest recording, whose order of requests is that of all predictions.
        variables, recorded_sizes: The names of the sizes in which the recordings differ, and the
            sizes of each.
        unmatched: By path, how many allocations the base does not have.
        unchecked, unseen, varying: The allocations of the base whose growth no recording confirms,
            of them those that some recordings lack, and those that depend on values: int64.
    """

    def __init__(self, files: Sequence[Recorded], variables: Sequence[str]) -> None:
        """Match the requests of recordings.

        Raises:
            PytracerError: They are of different programs.
        """
        points = points_of([file.sizes for file in files], variables)
        self.variables, self.recorded_sizes = list(variables), [file.sizes for file in files]
        largest = int(np.argmax(np.prod(points, axis=1)))
        self.base = files[largest]
        sizes = np.full((len(files), len(self.base.rows)), MISSING)
        self.unmatched: dict[str, int] = {}
        for i, file in enumerate(files):
            found = np.arange(len(file.rows)) if i == largest else matches(file, self.base)
            sizes[i, found >= 0] = file.size_bytes[found[found >= 0]]
            self.unmatched[file.path] = len(file.rows) - int(np.count_nonzero(found >= 0))
        self._growth = Growth(points, sizes)
        self._varying = self._find_varying(files, points, sizes)
        self.varying = self._varying.rows
        self.unchecked = np.setdiff1d(self._growth.unchecked, self.varying)
        is_missing = np.any(sizes == MISSING, axis=0)
        self.unseen = self.unchecked[is_missing[self.unchecked]]
        self._factor = np.ones(len(self.base.rows))

    def _find_varying(self, files: Sequence[Recorded], points: Column, sizes: Column) -> _Varying:
        """Return the requests that depend on values.

        Two steps of one recording have equal sizes, unless a request depends on values. Then all
        requests of the same stack count as such, unless they are equal in all recordings, and those
        that no polynomial fits.
        """
        key = self.base.key
        is_varying = np.zeros(len(key), bool)
        is_varying[self._growth.unfitted] = True
        ratio = np.ones(int(key.max(initial=0)) + 1)
        for file in files:
            for step in range(1, len(file.steps) - 2):
                one, two = matches_of_steps(file, step, file, step + 1)
                times = file.size_bytes[one] / file.size_bytes[two]
                is_varying |= np.isin(key, file.key[one[times != 1]])
                if file is self.base:
                    np.maximum.at(ratio, key[one], np.maximum(times, 1 / times))
        if len(files) > 1:  # the gradient of a weight has the stack of that of an input
            is_varying &= (sizes != sizes[0]).any(axis=0)
        rows = np.flatnonzero(is_varying)
        terms = growth_terms(points.shape[1])
        values = np.column_stack([term.at(points) for term in terms])
        best = np.zeros(len(rows), np.int64)
        for each in np.unique(key[rows]).tolist():  # the term to which all are most proportional
            own = key[rows] == each
            total = np.where(sizes == MISSING, 0, sizes)[:, rows[own]].sum(axis=1)
            share = (total[:, None] / values)[total > 0]
            best[own] = np.argmin(share.max(axis=0) / share.min(axis=0))
        base = [file is self.base for file in files].index(True)
        ratios = ratio[key[rows]]
        # Where nothing is seen to vary, as much is assumed as where most is.
        ratios[ratios == 1] = ratio.max(initial=1)
        powers = np.array([term.powers for term in terms])[best]
        return _Varying(rows, powers, sizes[base, rows] / values[base, best], ratios)

    def check_growth(self) -> None:
        """Check that larger sizes request more memory.

        Raises:
            PytracerError: They do not: the recordings have other sizes than those given.
        """
        sizes = self.base.sizes
        for name in self.variables:
            doubled = self.size_bytes({**sizes, name: 2 * sizes[name]}).sum()
            if doubled <= self.size_bytes(sizes).sum():
                raise PytracerError(
                    f"the recordings with more {name} request no more memory: check their sizes, "
                    + "; ".join(map(sizes_text, self.recorded_sizes))
                )

    def scaled(self, factor: Column) -> "Program":
        """Return the program with all sizes multiplied by factors, float64 by allocation."""
        found = copy(self)
        found._factor = factor
        return found

    @property
    def has_bounds(self) -> bool:
        """Whether requests are not known exactly."""
        return len(self.unchecked) > 0 or len(self.varying) > 0

    def size_bytes(self, sizes: Sizes, which: int = USUAL) -> Column:
        """Return the bytes of each allocation: int64.

        Args:
            sizes: The sizes of the data.
            which: `LEAST`, `USUAL` or `MOST`.
        """
        point, varying = points_of([sizes], self.variables)[0], self._varying
        found = self._growth.sizes_at(point, which)
        values = np.prod(point**varying.powers, axis=1)
        found[varying.rows] = varying.unit_bytes * values * varying.ratio ** float(which)
        rounded: Column = np.clip(np.rint(found * self._factor), 1, 2.0**50).astype(np.int64)
        return rounded

    def at(self, sizes: Sizes, which: int = USUAL) -> Recording:
        """Return the base with the requests at other sizes; the arguments are as before."""
        return self.base.with_sizes(self.size_bytes(sizes, which)).recording

    def simulate(
        self, sizes: Sizes, rules: AllocatorRules, limits: Limits = NO_LIMITS, which: int = USUAL
    ) -> Simulated:
        """Simulate the requests at other sizes.

        Raises:
            PytracerError: Without limits, there is no address for a request.
        """
        found = simulate_recording(self.at(sizes, which), rules, limits, with_curve=True)
        if limits == NO_LIMITS and found.failed_request is not None:
            raise PytracerError(f"{sizes_text(sizes)} needs more memory than any device can have")
        return found

    def held_bytes(self, sizes: Sizes) -> int:
        """Return the most bytes of blocks, as requested: no allocator can do with less."""
        requests = self.base.recording.requests
        change = (requests.kind == ALLOCATE).astype(np.int8) - (requests.kind == FREE)
        return int((self.size_bytes(sizes)[requests.block] * change).cumsum().max(initial=0))


def peaks(file: Recorded, done: Simulated) -> dict[str, Peak]:
    """Return the peaks of a simulation of a recording's requests without limits.

    Returns:
        "all" of it, and "first" and "steady" of the first step, with all that comes before it, and
        of the last complete step, if there are several.
    """
    ends, complete = file.ends, file.complete
    parts = {"all": (0, ends[-1])}
    if complete >= 1:
        parts["first"] = (0, ends[1])
    if complete >= 2:
        parts["steady"] = (ends[complete - 1] - 1, ends[complete])  # from what is held before
    curves = (done.allocated_bytes, done.reserved_bytes)
    return {
        name: Peak(*(0 if curve is None else int(curve[begin:end].max()) for curve in curves))
        for name, (begin, end) in parts.items()
    }


def recorded_peak(file: Recorded) -> Peak:
    """Return the peak of a recording, up to the end of its last step."""
    requests, usage = file.recording.requests, file.recording.history.usage
    end = int(requests.event[-1]) + 2 if len(requests) else 1
    return Peak(int(usage.allocated_bytes[:end].max()), int(usage.reserved_bytes[:end].max()))
