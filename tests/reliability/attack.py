"""The interface of an attack: its arguments and its result.

An attack is a module in `attacks/`. Its docstring's first line is its title; the rest describes
what it does. The module has these names:

    PROMISE = "One sentence: what must hold, which the attack checks."
    DEVICE = "cpu"     # "cuda": simulated CUDA devices; "none": the attack needs no torch
    SECONDS = 20       # the budget in `make reliability`; `make soak` multiplies all of them
    def attack(budget: Budget) -> Outcome: ...

Every attack runs in a separate process, with `tests/helpers`, `tests/devices` and
`tests/reliability` on `sys.path`. A process that greatly exceeds its budget is killed, which is a
failure.
"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Budget:
    """The time and the folder of an attack."""

    seconds: float  # time to spend. An attack finishes the case that it has begun
    seed: int  # seed of all random numbers
    folder: Path  # an empty scratch folder


@dataclass
class Outcome:
    """The result of an attack."""

    tried: int  # number of cases
    unit: str  # the name of the cases, in the plural: "mutated files"
    failures: list[str]  # one line for each broken promise, with what is needed to repeat the case
    figures: dict[str, int | float | str]  # measured values, by name with unit
    # One line for each part that could not be tried here, with the reason.
    skipped: list[str] = field(default_factory=list)
