"""What simulations say about an out-of-memory: with which changes it would not have happened."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytracer.analysis.device_data import DeviceData
from pytracer.reading.snapshot import Column
from pytracer.text import number, size

JOINING = "expandable_segments:True"  # the setting under which free memory is joined


@dataclass(frozen=True)
class Trial:
    """The simulation of a recording, and of what an earlier step requested next, with a change.

    Attributes:
        name: The change, as in "expandable_segments:True".
        settings: All settings, in the form of the allocator's variable.
        fits: Whether every allocation of the recording found memory, also those that failed.
        is_exact: Whether a simulation of the recording's own settings equals the recording after
            each request, and tests compare the simulator with this version of the allocator.
        like: The step that the rest of the step that failed is taken from, as in "step 3"; "" for
            the turns of a loop, and None if nothing like it precedes: then `fits` is all.
        steps: How many such steps fit, the first of which is the rest of that which failed; or
            turns.
        is_all: Whether these are all that were simulated, and a loop keeps no more in each turn.
        later: How many allocations fit after the one that failed.
        again: What does not, as in "256 MiB at /job/model.py:5 forward"; "" for none.
        peak_bytes: The most that is needed at one moment until the step's end.
        limit_bytes: The most that can be reserved; None if unknown.
    """

    name: str
    settings: str
    fits: bool
    is_exact: bool
    like: str | None = None
    steps: int = 0
    is_all: bool = False
    later: int = 0
    again: str = ""
    peak_bytes: int = 0
    limit_bytes: int | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the rest of the step fits, and not only the allocation that failed.

        How many turns a loop has is unknown: each must need as much as the one before.
        """
        return self.fits and self.steps > 0 and (self.is_all or bool(self.like))

    @property
    def is_refuted(self) -> bool:
        """Whether the allocation fails, or another one in the same step."""
        return not self.fits or (self.like is not None and not self.steps)

    def proof(self) -> str:
        """Return how far the change is known to help, in a few words."""
        how = "simulated" if self.is_exact else "simulated, with some deviation"
        if self.like is None:
            return f"{how}: this allocation succeeds"
        if not self.like:
            least = "" if self.again else "at least "
            return f"{how}: {least}{number(self.steps, 'more turn')} of this loop fit"
        of = "" if self.limit_bytes is None else f" of {size(self.limit_bytes)}"
        return f"{how}: the rest of a step like {self.like} fits in {size(self.peak_bytes)}{of}"

    def limits_of_proof(self, leaked_bytes: float = 0) -> str:
        """Return what is not known to fit, as a sentence; "" for nothing.

        `leaked_bytes`: what a leak keeps of each step.
        """
        if self.like is None:
            return "The program's next allocations are unknown."
        if not self.again and leaked_bytes and self.limit_bytes is not None:
            more = int((self.limit_bytes - self.peak_bytes) / leaked_bytes)
            return f"With the leak, memory runs out again within about {number(more, 'step')}."
        if not self.again:
            return ""
        when = "Then memory runs out again"
        if self.like and self.steps > 1:
            when = f"After {number(self.steps - 1, 'further such step')}, memory runs out again"
        elif self.like:
            when = "In the next such step, memory runs out again"
        return f"{when}, for {self.again}."

    def failure(self) -> str:
        """Return where memory runs out with the change, as a sentence."""
        if not self.fits:
            return f"{self.name} does not help (simulated)."
        later = f"{number(self.later, 'allocation')} later"
        if not self.like and self.steps:
            later = f"after {number(self.steps, 'more turn')} of this loop"
        return (
            f"Simulated with {self.name}, this allocation succeeds, but memory runs out {later}, "
            f"at a request for {self.again}."
        )


class Simulation(Protocol):
    """Simulates changes of what led to an out-of-memory."""

    @property
    def trials(self) -> Sequence[Trial]:
        """The simulated settings, the first to be advised first."""

    def without(self, rows: Column) -> Trial:
        """Simulate that these blocks of the history were free when the allocation failed."""

    def without_limit(self) -> Trial:
        """Simulate that the process may take all that is free on the device."""

    def without_other_pools(self) -> Trial:
        """Simulate that other pools are given up just before the allocation that failed."""

    def in_one_pool(self) -> Trial | None:
        """Simulate that private pools are that of the allocation that failed; or else are one."""

    def on_same_streams(self, *, in_turn: bool) -> Trial | None:
        """Simulate that each step uses the same streams, or one for all that it uses in turn."""

    def fitting_bytes(self) -> int | None:
        """Return what the line may request at most, with a smaller input; None: unknown."""


TrySettings = Callable[[DeviceData], Simulation | None]
"""Simulates an out-of-memory: see `pytracer.simulator.trials.try_settings`."""


def longest_lasting(trials: Sequence[Trial]) -> Trial | None:
    """Return the setting to advise: of those that are not refuted, one that lasts longest."""
    fitting = [trial for trial in trials if not trial.is_refuted]
    return max(fitting, key=lambda trial: (trial.is_all, trial.steps), default=None)
