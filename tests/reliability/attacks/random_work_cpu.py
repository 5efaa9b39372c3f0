"""Random work on the CPU for as long as the budget lasts, compared with a model.

Tensors are allocated and freed, on this thread and on short-lived ones; some allocations fail
because they exceed the memory. At the same time tracers with small bounds dump, clear, take steps
and phases, nest, and are started and stopped. The model is a list of the operations with the live
bytes after each. Every file must equal the end of that list: the same events in the same order,
with their phases and live bytes.
"""

from collections import deque
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cases
import numpy as np
import torch
from attack import Budget, Found
from cases import Case
from random_work import ENTRIES, RandomWork, Read

from pytracer import annotate

PROMISE = (
    "For as long as it runs, every file's events, phases and levels are those of the model, every "
    "bound holds, and the memory of the process stays flat."
)
DEVICE = "cpu"
SECONDS = 30
MAX_LIVE = 300
IMPOSSIBLE_BYTES = 2**60
ALLOC, FREED = 0, 2


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "allocations and frees", 3600)


class Event(NamedTuple):
    """An operation, and the live bytes after it."""

    action: int
    size: int
    phase: str
    level: int


class Program(RandomWork):
    """The random work and its model."""

    device, ring_entries = "cpu", ENTRIES
    bursts, nested_entries = (50, 500, 2000), (1, 100, ENTRIES)

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.live: list[tuple[int, torch.Tensor]] = []
        self.level = 0
        self.events: deque[Event] = deque(maxlen=ENTRIES)
        self.phase = ""
        self.failed = 0

    def note(self, action: int, size: int) -> None:
        self.level += size if action == ALLOC else -size
        self.events.append(Event(action, size, self.phase, self.level))
        self.count += 1

    def allocate_or_free(self, count: int) -> None:
        rng = self.rng
        for _ in range(count):
            if self.live and (len(self.live) > MAX_LIVE or rng.random() < 0.5):
                at = rng.randrange(len(self.live))
                self.live[at], self.live[-1] = self.live[-1], self.live[at]
                size = self.live.pop()[0]  # frees the tensor
                self.note(FREED, size)
            else:
                size = rng.randrange(1, 2 ** rng.randrange(1, 20))
                self.live.append((size, torch.empty(size, dtype=torch.uint8)))
                self.note(ALLOC, size)

    def fail(self) -> None:
        try:
            torch.empty(IMPOSSIBLE_BYTES, dtype=torch.uint8)
        except RuntimeError:
            self.failed += 1
        else:
            self.found.failures.append("an impossible allocation succeeded")

    def in_thread(self, count: int) -> None:
        phase, self.phase = self.phase, ""  # a thread of the program inherits none
        with cases.threads(self.found, partial(self.allocate_or_free, count)):
            pass
        self.phase = phase

    def work(self, events: int) -> None:
        self.phase = f"turn {self.rng.randrange(6)}"
        with annotate(self.phase):
            while events > 0:
                some = self.rng.randrange(1, 60)
                events -= some
                self.rng.choice((self.allocate_or_free, self.allocate_or_free, self.in_thread))(
                    some
                )
                if self.rng.random() < 0.005:
                    self.fail()
        self.phase = ""

    def compare(self, path: Path, what: str, begin: int, bound: int) -> Read:
        snapshot, histories = self.read(path)
        (trace,) = snapshot.traces
        usage = histories[0].usage.allocated_bytes
        rows = np.flatnonzero((trace.action == ALLOC) | (trace.action == FREED))
        actual = [
            Event(
                int(trace.action[row]),
                int(trace.size_bytes[row]),
                snapshot.strings[trace.user_metadata[row]],
                int(usage[row + 1]),
            )
            for row in rows.tolist()
        ]
        # Failed allocations have events too, which take the place of others.
        most = min(self.count - begin, bound, len(self.events))
        expected = list(self.events)[len(self.events) - len(actual) :]
        same = actual == expected and most - self.failed <= len(actual) <= most
        if not same:
            pairs = zip(actual, expected, strict=False)
            wrong = next((pair for pair in pairs if pair[0] != pair[1]), "none differs")
            self.found.failures.append(
                f"{what} has {len(actual)} events, not {most}; the first that differs: {wrong}"
            )
        state = sorted(snapshot.blocks.size_bytes.tolist())
        live = sorted(size for size, _ in self.live)
        self.found.check(state == live, f"{what} has {len(state)} blocks, not {len(live)}")
        self.found.count("levels compared", len(actual))
        self.found.count("files compared")
        return snapshot, histories


def case(case: Case) -> Found:
    program = Program(case)
    found = program.run(case.seconds)
    found.tried = program.count
    found.count("failed allocations", program.failed)
    return found
