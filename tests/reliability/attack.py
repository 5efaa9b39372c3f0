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
    """The time and the folder of an attack.

    Attributes:
        seconds: Time to spend. An attack finishes the case that it has begun.
        seed: Seed of all random numbers.
        folder: An empty scratch folder.
    """

    seconds: float
    seed: int
    folder: Path


@dataclass
class Outcome:
    """The result of an attack.

    Attributes:
        tried: Number of cases.
        unit: The name of the cases, in the plural: "mutated files".
        failures: One line for each broken promise, with what is needed to repeat the case.
        figures: Measured values, by name with unit.
        skipped: One line for each part that could not be tried here, with the reason.
    """

    tried: int
    unit: str
    failures: list[str]
    figures: dict[str, int | float | str]
    skipped: list[str] = field(default_factory=list)
