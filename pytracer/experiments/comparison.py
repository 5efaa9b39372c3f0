"""The result of an experiment: how one program ran under several allocator settings."""

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from pytracer.text import BriefRepr


@dataclass(frozen=True)
class Outcome:
    """The numbers of one run. None means unknown.

    If a program has several processes or devices, each number is the largest of any device.

    Attributes:
        peak_reserved_bytes: The most bytes that the allocator had reserved.
        peak_allocated_bytes: The most bytes that the program had allocated.
        peak_unallocated_bytes: The most bytes that were reserved but not allocated at one moment.
            This memory was cached for the next request, or too fragmented for it.
        oom_unallocated_bytes: The bytes that were reserved but not allocated at the last
            out-of-memory. The allocator had given back its cache by then, so the request could not
            use this memory.
        oom_reserved_bytes: The bytes that were reserved at the same out-of-memory.
        oom_requested_bytes: The bytes that the failed allocation requested.
        limit_bytes: The most bytes that the allocator could reserve.
        device_allocs: How often the allocator took memory from the device.
        retries: How often the allocator gave its cache back in order to allocate.
        ooms: The number of out-of-memory errors.
        step_us: The median time of a step, without the first step.
        wall_s: The duration of the run, in seconds.
        ended_early: Whether the run ended because memory ran out; its numbers then describe a part
            of the program.
        lower_bounds: The names of the numbers that may be too low, because the files lack events.
        failure: Why the run failed, in one line; None if the run did not fail. An out-of-memory
            error is not a failure.
        files: The snapshots of the run, and the file with its output.
    """

    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_unallocated_bytes: int | None = None
    oom_unallocated_bytes: int | None = None
    oom_reserved_bytes: int | None = None
    oom_requested_bytes: int | None = None
    limit_bytes: int | None = None
    device_allocs: int | None = None
    retries: int | None = None
    ooms: int | None = None
    step_us: float | None = None
    wall_s: float | None = None
    ended_early: bool = False
    lower_bounds: list[str] = field(default_factory=list)
    failure: str | None = None
    files: list[str] = field(default_factory=list)


@dataclass
class Setting:
    """One of the compared settings, and its runs.

    Attributes:
        name: The setting's name, as given, in the table of the command.
        settings: The complete settings of the allocator, in the form of its environment variable.
        outcomes: The outcomes of the runs that have ended, in their order.
    """

    name: str
    settings: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def measured(self) -> list[Outcome]:
        """The outcomes of the runs that did not fail."""
        return [outcome for outcome in self.outcomes if outcome.failure is None]

    @property
    def ended_early(self) -> bool:
        """Whether a run ended early, so that the numbers describe a part of the program."""
        return any(outcome.ended_early for outcome in self.measured)

    @property
    def out_of_memory_runs(self) -> tuple[int, int]:
        """How many runs ran out of memory, and for how many runs that is known."""
        known = self._known("ooms")
        return sum(ooms > 0 for ooms in known), len(known)

    def typical(self, name: str) -> float | None:
        """Return the median of an attribute over the measured runs; None: unknown."""
        known = self._known(name)
        return median(known) if known else None

    def spread(self, name: str) -> tuple[float, float] | None:
        """Return the least and the largest value of an attribute; None: unknown."""
        known = self._known(name)
        return (min(known), max(known)) if known else None

    def is_lower_bound(self, name: str) -> bool:
        """Return whether an attribute is only a lower bound in one of the measured runs."""
        return any(name in outcome.lower_bounds for outcome in self.measured)

    def _known(self, name: str) -> list[float]:
        values = (getattr(outcome, name) for outcome in self.measured)
        return [value for value in values if value is not None]


@dataclass(repr=False)
class Comparison(BriefRepr):
    """The runs of a program under several settings.

    Attributes:
        settings: The settings. All others are compared with the first.
        notes: What the numbers alone do not show, one sentence each.
        metadata: What was run, and on which machine: `kind`, `program`, `command`, `repeat`,
            `step_from`, `started`, `order`, `finished`, `backend` and `environment`.
    """

    settings: list[Setting]
    notes: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
