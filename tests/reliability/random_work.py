"""Random work for as long as a case lasts, next to tracers with small bounds."""

import gc
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
from attack import Found
from cases import Case
from flat import check_flat
from memory import status_bytes

from pytracer import Tracer
from pytracer.analysis.history import History, replay
from pytracer.reading import load
from pytracer.reading.snapshot import Snapshot

ENTRIES, STACK_BYTES = 4000, 2**20
BOUNDS = {"trace_alloc_max_entries": ENTRIES, "max_stack_bytes": STACK_BYTES}
EVENT_BYTES = 48
TOLERANCE_BYTES = 24 * 2**20

Read = tuple[Snapshot, list[History]]


class RandomWork:
    """The work and its model, which a subclass has for its device."""

    device: str
    ring_entries: int  # those of a ring of `ENTRIES`
    bursts: tuple[int, ...]  # the events of the work between two files
    nested_entries: tuple[int, ...]

    def __init__(self, case: Case) -> None:
        self.rng, self.path, self.found = case.rng, case.path, Found()
        self.tracer = Tracer(device=self.device, **BOUNDS)
        self.windows = Tracer(
            self.path / "windows",
            device=self.device,
            steps=range(1, 10**9, 2),
            discrete=["turn 1", "turn 3"],
            **BOUNDS,
        )
        self.devices = range(1)
        self.count = 0  # of the model's events
        self.cleared = 0  # their count when the tracer was cleared
        self.turns: list[Callable[[], None]] = [
            *(self.clear, self.nest, self.dump_meanwhile, self.step)
        ]

    def work(self, events: int) -> None:
        """Do work of so many events, in a phase "turn N"."""
        raise NotImplementedError

    def compare(self, path: Path, what: str, begin: int, bound: int) -> Read:
        """Read a file of this moment, and compare it with the model.

        Args:
            path: The file.
            what: Its name in reports.
            begin: The number of the model's events before its recording.
            bound: The most events that it has.
        """
        raise NotImplementedError

    def read(self, path: Path) -> Read:
        snapshot = load(path)
        return snapshot, [replay(snapshot, device) for device in self.devices]

    # --- operations of tracers ---

    def clear(self) -> None:
        self.tracer.clear()
        self.cleared = self.count
        self.work(200)

    def step(self) -> None:
        self.windows.step()
        self.work(200)

    def nest(self) -> None:
        begin, written = self.count, list[str]()
        bound = self.rng.choice(self.nested_entries)
        options: dict[str, Any] = {"forward_stacks": self.rng.choice((True, False, None))}
        options |= {"trace_alloc_max_entries": bound, "on_snapshot": written.append}
        with Tracer(self.path / "nested.pickle", device=self.device, **options):
            self.work(500)
        path = Path(written[-1])  # files of out-of-memory errors come first
        self.compare(path, "a nested tracer's file", begin, bound)
        for name in written:
            Path(name).unlink(missing_ok=True)

    def dump_meanwhile(self) -> None:
        path = self.path / "meanwhile.pickle"

        def dump() -> None:
            for _ in range(3):
                self.tracer.dump(path)

        with cases.threads(self.found, dump):
            self.work(500)
        self.read(path)

    def look(self) -> Read:
        """Compare a file, and check the bounds."""
        begin = time.monotonic()
        self.tracer.dump(self.path / "look.pickle")
        self.found.highest("longest dump, s", time.monotonic() - begin)
        read = self.compare(self.path / "look.pickle", "a file", self.cleared, ENTRIES)
        stats = self.tracer.stats()
        stacks = stats["stacks"]
        self.found.check(stacks["bytes"] <= stacks["max_bytes"] == STACK_BYTES, f"{stacks}")
        for device in stats["devices"]:
            most = self.ring_entries * EVENT_BYTES
            within = device["ring_bytes"] <= device["max_ring_bytes"] == most
            within = within and device["held"] <= ENTRIES and device["live_dropped"] == 0
            self.found.check(within, f"{device}")
        failures = stats["failures"] + self.windows.stats()["failures"]
        self.found.check(failures == 0, f"{failures} files were not written")
        return read

    def sweep_files(self) -> None:
        """Read one file of a step, and delete all, because a long run would fill the disk."""
        paths = sorted((self.path / "windows").rglob("*.pickle"))
        self.found.count("files of steps and phases", len(paths))
        for path in paths[-1:]:
            load(path)
        shutil.rmtree(self.path / "windows", ignore_errors=True)

    def run(self, seconds: float) -> Found:
        """Work until a promise is broken or the time is spent."""
        deadline = time.monotonic() + seconds
        resident = []
        with self.tracer, self.windows:
            while not resident or (not self.found.failures and time.monotonic() < deadline):
                self.work(self.rng.choice(self.bursts))
                self.rng.choice(self.turns)()
                self.look()
                self.sweep_files()
                gc.collect()
                resident.append(status_bytes("VmRSS"))
        check_flat(resident, TOLERANCE_BYTES, self.found)
        return self.found
