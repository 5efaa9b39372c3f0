"""Programs of random parts, some of which leak, recorded on the CPU."""

import collections
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import pytracer

New = Callable[[int], Any]


def make(count: int) -> Any:
    return torch.zeros(count)


@dataclass
class Part:
    """A part of a program, of which a subclass allocates in one line."""

    random: random.Random  # the source of its parameters and choices
    new: New  # allocates: `make`, so that parts share a call site, or `torch.zeros`
    kept: Any = None
    # The steps in which it allocated memory that it never releases.
    kept_in: list[int] = field(default_factory=list)
    is_leak = False

    def __post_init__(self) -> None:
        self.size = self.random.randrange(100, 3000)
        self.kept = []
        self.begin()

    def begin(self) -> None:
        """Choose the parameters."""

    def step(self, number: int) -> None:
        raise NotImplementedError

    @property
    def lines(self) -> range:
        code = type(self).step.__code__
        return range(code.co_firstlineno, max(line for *_, line in code.co_lines() if line) + 1)


class EveryFewSteps(Part):
    is_leak = True

    def begin(self) -> None:
        self.period = self.random.choice([1, 1, 2, 3, 5, 7, 9])

    def step(self, number: int) -> None:
        if number % self.period == 0:
            self.kept.append(self.new(self.size))
            self.kept_in.append(number)


class Sometimes(Part):
    is_leak = True

    def begin(self) -> None:
        self.share = self.random.uniform(0.5, 1)

    def step(self, number: int) -> None:
        tensor = self.new(self.random.randrange(100, 3000))
        if self.random.random() < self.share:
            self.kept.append(tensor)
            self.kept_in.append(number)


class SinceLater(Part):
    is_leak = True

    def begin(self) -> None:
        self.first = self.random.randrange(2, 20)

    def step(self, number: int) -> None:
        if number >= self.first:
            self.kept.append(self.new(self.size))
            self.kept_in.append(number)


class Concatenated(Part):
    is_leak = True

    def step(self, number: int) -> None:
        self.kept = self.new(self.size * number)
        self.kept_in.append(number)


class Activations(Part):
    def step(self, number: int) -> None:
        self.kept = [self.new(self.random.randrange(100, 3000)) for _ in range(5)]


class Bounded(Part):
    def begin(self) -> None:
        self.kept = collections.deque(maxlen=self.random.randrange(2, 12))
        self.varies = self.random.random() < 0.5

    def step(self, number: int) -> None:
        size = self.random.randrange(100, 3000) if self.varies else self.size
        self.kept.append(self.new(size))


class Cleared(Part):
    def begin(self) -> None:
        self.period = self.random.randrange(2, 16)

    def step(self, number: int) -> None:
        self.kept.append(self.new(self.size))
        if number % self.period == 0:
            self.kept.clear()


class GrownAndCleared(Part):
    def begin(self) -> None:
        self.period = self.random.randrange(3, 16)

    def step(self, number: int) -> None:
        self.kept = self.new(self.size * (1 + number % self.period))


class Cache(Part):
    def begin(self) -> None:
        self.kept, self.keys = {}, self.random.randrange(2, 12)

    def step(self, number: int) -> None:
        key = self.random.randrange(self.keys)
        if key not in self.kept:
            self.kept[key] = self.new(100 + key)


class WarmUp(Part):
    def begin(self) -> None:
        self.last = self.random.randrange(1, 8)

    def step(self, number: int) -> None:
        if number <= self.last:
            self.kept.append(self.new(self.size))


class Evaluation(Part):
    def begin(self) -> None:
        self.period = self.random.randrange(4, 14)

    def step(self, number: int) -> None:
        if number % self.period == 0:
            self.kept = [self.new(self.size) for _ in range(4)]


LEAKS = (EveryFewSteps, Sometimes, SinceLater, Concatenated)
INNOCENTS = (Activations, Bounded, Cleared, GrownAndCleared, Cache, WarmUp, Evaluation)


@dataclass(frozen=True)
class Program:
    """A program that ran."""

    parts: list[Part]  # its parts
    steps: int  # how many steps it ran
    path: Path  # its recording


def run(seed: int, path: Path, loses_beginning: bool, *, ends: bool = False) -> Program:
    """Run the program of a seed and record it.

    Args:
        loses_beginning: The ring overwrites the first steps.
        ends: All is released before the file is written.
    """
    source = random.Random(seed)
    kinds = source.sample(LEAKS, source.choice([0, 1, 1, 2])) + source.sample(INNOCENTS, 4)
    source.shuffle(kinds)
    parts = [kind(source, make if source.random() < 0.7 else torch.zeros) for kind in kinds]
    steps = source.randrange(40, 150)
    ring = source.randrange(600, 1600) if loses_beginning else 100_000
    if ends:  # a few steps, and what is released at the end
        ring = 60 + sum(part.is_leak for part in parts) * steps
    with pytracer.Tracer(path, device="cpu", trace_alloc_max_entries=ring) as tracer:
        model = [torch.zeros(5000) for _ in range(5)]
        for number in range(1, steps + 1):
            for part in parts:
                part.step(number)
            tracer.step()
        if ends:
            model.clear()
            for part in parts:
                part.kept = None
    return Program(parts, steps, path)
