"""Random work on the CPU for as long as the budget lasts, compared with a model.

Tensors are allocated and freed, on this thread and on short-lived ones; some allocations fail
because they exceed the memory. At the same time tracers with small bounds dump, clear, take steps
and phases, nest, and are started and stopped. The model is a list of the operations with the live
bytes after each. Every file must equal the end of that list: the same events in the same order,
with their phases and live bytes.
"""

import gc
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cases
import numpy as np
from attack import Budget, Outcome
from cases import Case, Found
from flat import check_flat
from memory import status_bytes

PROMISE = (
    "For as long as it runs, every file's events, phases and levels are those of the model, every "
    "bound holds, and the memory of the process stays flat."
)
DEVICE = "cpu"
SECONDS = 30
ENTRIES, STACK_BYTES = 4000, 2**20
TOLERANCE_BYTES = 24 * 2**20
MAX_LIVE = 300
IMPOSSIBLE_BYTES = 2**60
ALLOC, FREED = 0, 2


def attack(budget: Budget) -> Outcome:
    return cases.attack_by_cases(__name__, budget, "allocations and frees", 3600)


class Event(NamedTuple):
    """An operation, and the live bytes after it."""

    action: int
    size: int
    phase: str
    level: int


class Program:
    """The random work and its model."""

    def __init__(self, case: Case) -> None:
        import torch

        from pytracer import Tracer

        self.empty: Callable[..., Any] = lambda size: torch.empty(size, dtype=torch.uint8)
        self.rng = case.rng
        self.path = case.path
        self.found = Found()
        self.live: list[tuple[int, Any]] = []
        self.level = 0
        self.events: deque[Event] = deque(maxlen=ENTRIES)
        self.count = 0  # the number of all events
        self.phase = ""
        self.cleared = 0
        self.failed = 0
        bounds = {"trace_alloc_max_entries": ENTRIES, "max_stack_bytes": STACK_BYTES}
        self.tracer = Tracer(device="cpu", **bounds)
        self.windows = Tracer(
            self.path / "windows",
            device="cpu",
            steps=range(1, 10**9, 2),
            discrete=["turn 1", "turn 3"],
            **bounds,
        )
        self.resident: list[int] = []

    # --- operations of the program ---

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
                self.live.append((size, self.empty(size)))
                self.note(ALLOC, size)

    def fail(self) -> None:
        try:
            self.empty(IMPOSSIBLE_BYTES)
        except RuntimeError:
            self.failed += 1
        else:
            self.found.problems.append("an impossible allocation succeeded")

    def in_thread(self, count: int) -> None:
        phase, self.phase = self.phase, ""  # a thread of the program inherits none
        thread = threading.Thread(target=self.allocate_or_free, args=(count,), daemon=True)
        thread.start()
        thread.join(50)
        self.phase = phase
        self.found.check(not thread.is_alive(), "a thread that allocates hangs")

    def work(self, count: int) -> None:
        from pytracer import annotate

        self.phase = f"turn {self.rng.randrange(6)}"
        with annotate(self.phase):
            while count > 0:
                some = self.rng.randrange(1, 60)
                count -= some
                self.rng.choice((self.allocate_or_free, self.allocate_or_free, self.in_thread))(
                    some
                )
                if self.rng.random() < 0.005:
                    self.fail()
        self.phase = ""

    # --- operations of tracers ---

    def clear(self) -> None:
        self.tracer.clear()
        self.cleared = self.count

    def step(self) -> None:
        self.windows.step()

    def nest(self) -> None:
        from pytracer import Tracer

        begin, written = self.count, list[str]()
        bound = self.rng.choice((1, 100, ENTRIES))
        forward = self.rng.choice((True, False, None))
        options = {"trace_alloc_max_entries": bound, "forward_stacks": forward}
        with Tracer(
            self.path / "nested.pickle", device="cpu", on_snapshot=written.append, **options
        ):
            self.work(500)
        path = Path(written[-1])  # files of out-of-memory errors come first
        self.compare(path, begin, bound, "a nested tracer's file")
        for name in written:
            Path(name).unlink(missing_ok=True)

    def dump_meanwhile(self) -> None:
        from pytracer.analysis.history import replay
        from pytracer.reading import load

        path = self.path / "meanwhile.pickle"
        thread = threading.Thread(target=self.tracer.dump, args=(path,), daemon=True)
        thread.start()
        self.work(1000)
        thread.join(50)
        self.found.check(not thread.is_alive(), "a thread that dumps hangs")
        replay(load(path))

    def look(self) -> None:
        path = self.path / "look.pickle"
        begin = time.monotonic()
        self.tracer.dump(path)
        self.found.highest("longest dump, s", time.monotonic() - begin)
        self.compare(path, self.cleared, ENTRIES, "a file")
        (device,) = self.tracer.stats()["devices"]
        stacks = self.tracer.stats()["stacks"]
        self.found.check(stacks["bytes"] <= stacks["max_bytes"] == STACK_BYTES, f"{stacks}")
        within = device["ring_bytes"] <= device["max_ring_bytes"] == ENTRIES * 48
        self.found.check(within and device["held"] <= ENTRIES, f"{device}")
        failures = self.tracer.stats()["failures"] + self.windows.stats()["failures"]
        self.found.check(failures == 0, f"{failures} files were not written")

    def compare(self, path: Any, begin: int, bound: int, what: str) -> None:
        """Compare a file with the model's events from `begin` on, of which it has `bound`."""
        from pytracer.analysis.history import replay
        from pytracer.reading import load

        snapshot = load(path)
        (trace,) = snapshot.traces
        usage = replay(snapshot).usage.allocated_bytes
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
            self.found.problems.append(
                f"{what} has {len(actual)} events, not {most}; the first that differs: {wrong}"
            )
        state = sorted(snapshot.blocks.size_bytes.tolist())
        live = sorted(size for size, _ in self.live)
        self.found.check(state == live, f"{what} has {len(state)} blocks, not {len(live)}")
        self.found.count("levels compared", len(actual))
        self.found.count("files compared")

    def sweep_files(self) -> None:
        """Read one file of a step, and delete all, because a long run would fill the disk."""
        from pytracer.reading import load

        paths = sorted((self.path / "windows").rglob("*.pickle"))
        self.found.count("files of steps and phases", len(paths))
        for path in paths[-1:]:
            load(path)
        shutil.rmtree(self.path / "windows", ignore_errors=True)


def case(case: Case) -> Found:
    deadline = time.monotonic() + case.seconds
    program = Program(case)
    found = program.found
    with program.tracer, program.windows:
        while not found.problems:
            program.work(program.rng.choice((50, 500, 2000)))
            turns = (program.clear, program.nest, program.dump_meanwhile, program.step)
            program.rng.choice(turns)()
            program.look()
            program.sweep_files()
            gc.collect()
            program.resident.append(status_bytes("VmRSS"))
            if time.monotonic() > deadline:
                break
    found.tried = program.count
    found.count("failed allocations", program.failed)
    check_flat(program.resident, TOLERANCE_BYTES, found)
    return found
