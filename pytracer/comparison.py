"""How runs of one program under several allocator settings ended: what an experiment and a replay
both come to.
"""

from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How one run ended. None is what is not known.

    Of a program of several processes or devices each number is that of the one that has most.

    Attributes:
        peak_reserved_bytes, peak_allocated_bytes: The most that the allocator held of the device,
            and the most that the program had of it.
        fragmentation_bytes: The difference of the two, of one device.
        device_allocs: How often memory was taken from the device.
        retries: How often cached memory had to be given back to allocate.
        ooms: How often an allocation failed for good.
        step_us: The median time of a step.
        wall_s: How long the run took.
        ended_early: Whether it ended when memory ran out: what it tells is of the time before.
        failure: Why it did not end well, in a line; None: it did. An out-of-memory is no failure.
        files: Of the run: its snapshots, and what it printed.
    """

    peak_reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    fragmentation_bytes: int | None = None
    device_allocs: int | None = None
    retries: int | None = None
    ooms: int | None = None
    step_us: float | None = None
    wall_s: float | None = None
    ended_early: bool = False
    failure: str | None = None
    files: list[str] = field(default_factory=list)


@dataclass
class Setting:
    """One of the settings that are compared.

    Attributes:
        name: What it is called in the table.
        settings: The allocator's settings in full, as its variable has them.
        outcomes: Of its runs that are over, in their order.
    """

    name: str
    settings: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def measured(self) -> list[Outcome]:
        """Those of runs that did not fail."""
        return [outcome for outcome in self.outcomes if outcome.failure is None]

    def typical(self, name: str) -> float | None:
        """The median of an attribute of these; None: no run tells it."""
        known = self._known(name)
        return median(known) if known else None

    def spread(self, name: str) -> tuple[float, float] | None:
        """The least and the most of it."""
        known = self._known(name)
        return (min(known), max(known)) if known else None

    def _known(self, name: str) -> list[float]:
        values = (getattr(outcome, name) for outcome in self.measured)
        return [value for value in values if value is not None]


@dataclass
class Comparison:
    """What became of the settings.

    Attributes:
        settings: The first is what the others are compared with.
        notes: What the numbers do not tell by themselves, a sentence each.
        about: What was run, and on what, for the report.
    """

    settings: list[Setting]
    notes: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
