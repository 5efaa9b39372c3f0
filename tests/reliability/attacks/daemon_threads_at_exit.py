"""Daemon threads that allocate, dump, step, and enter phases while the interpreter ends.

Each process starts some of these threads and ends while a tracer records. Another tracer starts
after pytracer's own exit callback, so that recording continues throughout the finalisation. The
allocating threads are in TorchScript, without the GIL, because torch itself aborts when a thread
requests the GIL at that time. Another process reads the exit file.
"""

import atexit
import ctypes
import gc
import itertools
import pickle
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import torch
import viewers
from attack import Budget, Found
from cases import Case

from pytracer import Tracer, annotate

PROMISE = (
    "Whatever daemon threads do with tracers while the interpreter ends, the process ends in "
    "time, with its own status and without a message, and the exit file is complete."
)
DEVICE = "cpu"
SECONDS = 30
KEPT = [1001, 1002]
# Messages about a step that took long, about threads that use one output repeatedly, and about a
# hook that no test has needed yet.
ALLOWED = (
    "step.* has more events than trace_alloc_max_entries|already has a snapshot of this"
    "|^pytracer: (wrote|compiling the hook) "
)
MIN_EVENTS = 500
START_SECONDS = 45.0


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "exits", 0.2, check=check)


def prepare() -> None:
    """Compile the script once, before any case forks."""
    global _unit
    _unit = torch.jit.CompilationUnit("""
def churn(turns: int):
    kept = [torch.empty([1])]
    for turn in range(turns):
        kept[0] = torch.empty([1 + turn % 1000])
    return kept[0]
""")


_unit: Any = None


class Program:
    """A process that ends while its threads work."""

    def __init__(self, case: Case) -> None:
        self.rng = case.rng
        self.tracer = Tracer("exit.pickle", device="cpu", trace_alloc_max_entries=2000)
        self.stepping = Tracer(
            "steps", device="cpu", trace_alloc_max_entries=100_000, steps=range(1, 1000)
        )
        self.numbers = itertools.count()

    def churn(self) -> None:
        _unit.churn(2**60)

    def churn_in_a_phase(self) -> None:
        with annotate("daemon"), annotate("inner"):
            _unit.churn(2**60)

    def enter_phases(self) -> None:
        while True:
            with annotate(f"phase {next(self.numbers) % 50}"):
                pass

    def dump(self) -> None:
        path = f"dump{next(self.numbers)}.pickle"
        while True:
            self.tracer.dump(path)

    def read(self) -> None:
        while True:
            self.tracer.stats()
            self.tracer.events()

    def trace(self) -> None:
        path = f"other{next(self.numbers)}.pickle"
        while True:
            with Tracer(path, device="cpu", trace_alloc_max_entries=100):
                time.sleep(0.0001)

    def step(self) -> None:
        while True:
            self.stepping.step()
            time.sleep(0.001)

    def clear(self) -> None:
        while True:
            self.tracer.clear()
            time.sleep(0.001)

    def deeply(self, work: Callable[[], None], levels: int) -> None:
        if levels:
            self.deeply(work, levels - 1)
        else:
            work()


def case(case: Case) -> Found:
    program = Program(case)
    rng = program.rng
    if rng.random() < 0.8:
        gc.freeze()  # otherwise the last collections of torch's objects take most of the time
    late = Tracer(device="cpu", trace_alloc_max_entries=2000)
    atexit.register(late.start)
    program.tracer.start()
    kept = [torch.empty(size, dtype=torch.uint8) for size in KEPT]
    globals()["_kept"] = kept  # alive until the module is freed
    works = [program.churn, program.churn_in_a_phase]
    works = rng.sample(works, rng.randrange(1, 3))
    others = [program.enter_phases, program.dump, program.read, program.trace, program.step]
    others = rng.sample([*others, program.clear], rng.randrange(5))
    if program.step in others:
        program.stepping.start()
    for work in works + others:
        levels = rng.choice((0, 15, 60))
        threading.Thread(target=program.deeply, args=(work, levels), daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    while recorded(program.tracer) < MIN_EVENTS:
        assert time.monotonic() < deadline, "the threads did not start to record"
        time.sleep(0.002)
    time.sleep(rng.random() * 0.02)
    # C's exit handlers run after the interpreter; torch's static objects would be destroyed next.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    found = Found(tried=1)
    found.count("threads at work", len(works + others))
    Path("threads").write_text(", ".join(work.__name__ for work in works + others))
    return found


def recorded(tracer: Any) -> int:
    """Return the number of events, including those that `clear()` has removed."""
    events = tracer.events()
    return int(events["sequence"][-1]) if len(events) else 0


def check(folder: Path, found: Found) -> None:
    """Check the files of the ended process, in the attack's own process."""
    threads = (folder / "threads").read_text()
    text = (folder / "stderr").read_text()
    messages = [line for line in text.splitlines() if not re.search(ALLOWED, line)]
    found.check(not messages, f"({threads}) messages: {cases.stacks(text)}")
    try:
        snapshot = pickle.loads((folder / "exit.pickle").read_bytes())
        viewers.check_snapshot(snapshot)
        sizes = {segment["total_size"] for segment in snapshot["segments"]}
        found.check(set(KEPT) <= sizes, f"({threads}) the exit file lacks the blocks {KEPT}")
    except Exception as error:
        found.failures.append(f"({threads}) the exit file is not complete: {error!r}")
