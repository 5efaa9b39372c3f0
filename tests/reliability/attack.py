"""The interface of an attack: its arguments and its result.

An attack is a module in `attacks/`. Its docstring's first line is its title; the rest describes
what it does. The module has these names:

    PROMISE = "One sentence: what must hold, which the attack checks."
    DEVICE = "cpu"     # "cuda": simulated CUDA devices; "none": the attack needs no torch
    SECONDS = 20       # the budget in `make reliability`; `make soak` multiplies all of them
    def attack(budget: Budget) -> Found: ...

Every attack runs in a separate process, with `tests/helpers`, `tests/devices` and
`tests/reliability` on `sys.path`. A process that greatly exceeds its budget is killed, which is a
failure.
"""

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HIGHEST = ("most ", "longest ")


@dataclass(frozen=True)
class Budget:
    """The time and the folder of an attack."""

    seconds: float  # time to spend. An attack finishes the case that it has begun
    seed: int  # seed of all random numbers
    folder: Path  # an empty scratch folder

    @cached_property
    def rng(self) -> random.Random:
        return random.Random(self.seed)


@dataclass
class Found:
    """The result of an attack, or of one of its cases."""

    unit: str = "cases"  # the name of what `tried` counts, in the plural: "mutated files"
    tried: int = 0
    # One line for each broken promise, with what is needed to repeat the case.
    failures: list[str] = field(default_factory=list)
    # Measured values, by name with unit. The sum over the cases counts; for names that begin with
    # "most " or "longest ", the maximum counts.
    figures: dict[str, float] = field(default_factory=dict)
    # One line for each part that could not be tried here, with the reason.
    skipped: list[str] = field(default_factory=list)

    def check(self, condition: object, failure: str) -> None:
        if not condition:
            self.failures.append(failure)

    def fail(self, case: str, problems: Iterable[str]) -> None:
        """Record the broken promises of a case, with what is needed to repeat it."""
        self.failures += [f"{case}: {' '.join(problem.split())}" for problem in problems]

    def count(self, name: str, number: float = 1) -> None:
        self.figures[name] = self.figures.get(name, 0) + number

    def highest(self, name: str, number: float) -> None:
        """Record a number whose maximum counts."""
        assert name.startswith(HIGHEST), name
        self.figures[name] = max(self.figures.get(name, number), number)

    def add(self, other: "Found") -> None:
        self.tried += other.tried
        self.failures += other.failures
        self.skipped += [line for line in other.skipped if line not in self.skipped]
        for name, number in other.figures.items():
            (self.highest if name.startswith(HIGHEST) else self.count)(name, number)

    def turns(self, budget: Budget, least: int = 1) -> Iterator[int]:
        """Yield the numbers of the attack's cases until the budget is spent, and count them."""
        deadline = time.monotonic() + budget.seconds
        while self.tried < least or time.monotonic() < deadline:
            yield self.tried
            self.tried += 1
