"""Sixty-four threads that allocate, free each other's blocks, dump, step and enter phases.

Every allocation has a unique size, so that each event of a recording can be compared with the log
of the allocating thread: allocated once, freed at most once, in the thread's phase. Two tracers
record: one everything, the other one file for each step. Each event must be in the file of exactly
one step, and every dump's trace must lead to its state.
"""

import itertools
import queue
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import torch
from attack import Budget, Found
from cases import Case

from pytracer import Tracer, annotate
from pytracer.analysis.history import replay
from pytracer.reading import load

PROMISE = (
    "Whatever 64 threads do at the same time, each allocation and each free is recorded once, in "
    "its phase and in one step; counts and levels are the sums of what the threads did; every "
    "file loads."
)
DEVICE = "cpu"
SECONDS = 20
THREADS = 64
MAX_PER_THREAD = 5_000  # allocations; the ring has room for all
ENTRIES = 2 * THREADS * MAX_PER_THREAD
MAX_STEPS = 60  # each step has a file with all live blocks
ALLOC, FREED = 0, 2  # indices in pytracer.ACTIONS


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "allocations", 6)


class Worker:
    """One of the threads, with the log of its operations."""

    def __init__(self, number: int, program: "Program", seconds: float) -> None:
        self.number = number
        self.program = program
        self.deadline = time.monotonic() + seconds
        self.rng = random.Random(f"{program.case.seed} {number}")
        self.allocated: dict[int, tuple[str, ...]] = {}  # phases, by size
        self.freed: list[int] = []
        self.phases = (f"thread {number % 7}",)

    def run(self) -> None:
        with annotate(self.phases[0]):
            while time.monotonic() < self.deadline:
                self.turn()

    def turn(self) -> None:
        kind = self.rng.random()
        if kind < 0.9:
            for _ in range(self.rng.randrange(1, 30)):
                self.allocate_or_free()
        elif kind < 0.97:
            outer = self.phases
            name = f"phase {self.rng.randrange(8)}"
            # Entering a phase again within itself gives the same phase.
            again = outer.index(name) + 1 if name in outer else 0
            self.phases = outer[:again] if again else (*outer, name)
            with annotate(name):
                self.turn()
            self.phases = outer
        elif kind < 0.98:
            self.program.step()
        elif kind < 0.985:
            self.program.dump(self.number)
        elif kind < 0.99:
            self.program.tracer.stats()
        else:
            time.sleep(0.001)

    def allocate_or_free(self) -> None:
        shared = self.program.shared
        if self.rng.random() < 0.5 and len(self.allocated) < MAX_PER_THREAD:
            size = 1 + self.number + THREADS * len(self.allocated)
            self.allocated[size] = self.phases
            shared.put((size, self.program.empty(size)))
            return
        try:
            size, block = shared.get_nowait()
        except queue.Empty:
            return
        self.freed.append(size)
        del block


class Program:
    def __init__(self, case: Case) -> None:
        self.empty: Callable[..., Any] = lambda size: torch.empty(size, dtype=torch.uint8)
        self.case = case
        self.shared: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.steps = itertools.count(1)
        self.taken = 0
        self.tracer = Tracer(device="cpu", trace_alloc_max_entries=ENTRIES)
        self.stepping = Tracer(
            case.path / "steps",
            device="cpu",
            trace_alloc_max_entries=ENTRIES,
            steps=range(1, 10**6),
        )

    def step(self) -> None:
        if next(self.steps) <= MAX_STEPS:
            self.stepping.step()
            self.taken += 1  # with the GIL held; compared only after all threads have joined

    def dump(self, number: int) -> None:
        self.tracer.dump(f"{number}.pickle")


def check_events(program: Program, workers: list[Worker], found: Found) -> None:
    """Compare each event with the log of its thread."""
    allocated = {s: phases for worker in workers for s, phases in worker.allocated.items()}
    freed = Counter(size for worker in workers for size in worker.freed)
    tracer = program.tracer
    events = tracer.events()
    sizes = events["size_bytes"]
    seen = Counter(sizes[events["action"] == ALLOC].tolist())
    found.check(seen == Counter(allocated.keys()), "allocations are missing, or recorded twice")
    seen = Counter(sizes[events["action"] == FREED].tolist())
    found.check(seen == freed, "frees are missing, or recorded twice")
    paths = {int(number): tracer.phase(int(number)) for number in np.unique(events["phase"])}
    wrong = [
        (size, paths[phase], allocated[size])
        for size, phase in zip(
            sizes[events["action"] == ALLOC].tolist(),
            events["phase"][events["action"] == ALLOC].tolist(),
            strict=True,
        )
        if paths[phase] != allocated[size]
    ]
    found.check(not wrong, f"{len(wrong)} events are in another phase, such as {wrong[:1]}")
    found.check(bool(np.all(np.diff(events["time_ns"]) >= 0)), "times are not in order")
    live = [size for size in allocated if freed[size] == 0]
    (device,) = tracer.stats()["devices"]
    expected = {
        "recorded": len(allocated) + sum(freed.values()),
        "overwritten": 0,
        "unknown_frees": 0,
        "live_dropped": 0,
        "live_blocks": len(live),
        "live_block_bytes": sum(live),
    }
    actual = {name: device[name] for name in expected}
    found.check(actual == expected, f"counts are {actual}, not {expected}")
    steps = program.stepping.current_step
    found.check(steps == program.taken + 1, f"step {steps} after {program.taken} calls of step()")
    found.tried = len(allocated)
    found.count("frees", sum(freed.values()))
    found.count("steps", program.taken)


def check_files(case: Case, program: Program, found: Found) -> None:
    """Check that every file's trace leads to its state, and that steps share no event."""
    recorded = 0
    paths = sorted(case.path.rglob("*.pickle"))
    for path in paths:
        try:
            snapshot = load(path)
            usage = replay(snapshot).usage
            device = snapshot.metadata.device(0)
            state = int(snapshot.blocks.size_bytes.sum())
            last = int(usage.allocated_bytes[-1])
            problem = f"{path.name}: {last} bytes by its trace, {state} by its state"
            found.check(last == state, problem)
            found.check(device.overwritten == 0, f"{path.name}: events are missing")
        except Exception as error:
            found.failures.append(f"{path} does not load: {error!r}")
            continue
        if path.is_relative_to(case.path / "steps"):
            recorded += device.recorded
    total = program.tracer.stats()["devices"][0]["recorded"]
    found.check(recorded == total, f"the steps' files have {recorded} events, not {total}")
    found.count("files", len(paths))


def case(case: Case) -> Found:
    sys.setswitchinterval(0.0005)
    program = Program(case)
    found = Found()
    with program.tracer, program.stepping:
        workers = [Worker(number, program, case.seconds) for number in range(THREADS)]
        with cases.threads(found, *(worker.run for worker in workers)):
            time.sleep(case.seconds)
        if found.failures:
            return found
    check_events(program, workers, found)
    check_files(case, program, found)
    return found
