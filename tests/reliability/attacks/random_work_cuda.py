"""Random work on simulated CUDA for as long as the budget lasts, compared with `memory_stats()`.

torch's real CUDA allocator runs on simulated devices: two devices, streams, threads, memory pools,
graphs, frees that wait, segments that are expandable or not, `empty_cache()`, and out-of-memory
errors that the program survives. At the same time tracers with small bounds dump, clear, take steps
and phases, nest, and stand in for torch's own recorder. At many moments the allocator's own
statistics are kept; every later file whose trace includes such a moment must show the same values
there.
"""

from pathlib import Path

import cases
import numpy as np
import torch
from accelerator.test_history import EXACT_ALWAYS, STATS, unsized
from accelerator.workload import Workload
from attack import Budget, Found
from cases import Case
from random_work import ENTRIES, RandomWork, Read

import pytracer
from pytracer.reading.snapshot import SNAPSHOT

PROMISE = (
    "For as long as it runs, every file's levels are those of the allocator at the same moments, "
    "every bound holds, and the memory of the process stays flat."
)
DEVICE = "cuda"
SECONDS = 40
KEPT_MOMENTS = 3000
EXPANDABLE = ("toggled", "on", "off")


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(
        __name__, budget, "events of the allocator", max(20, budget.seconds / 3)
    )


class Program(RandomWork):
    """The random work and the known facts about it."""

    device, ring_entries = "cuda", ENTRIES + 1
    bursts, nested_entries = (50, 300, 1500), (10, 500, 3000)

    def __init__(self, case: Case) -> None:
        torch.cuda.init()
        super().__init__(case)
        self.expandable = EXPANDABLE[case.number % len(EXPANDABLE)]
        self.workload = Workload(
            "cuda",
            self.rng.randrange(10**6),
            expandable=self.expandable,
            delays=self.rng.random() < 0.7,
            concurrent=True,
        )
        self.devices = range(min(2, torch.cuda.device_count()))
        # For each device: numbers of markers in the trace, with the statistics of these moments.
        self.moments: list[list[tuple[int, dict[str, int]]]] = [[] for _ in self.devices]
        self.turns += [self.nest, self.step, self.stand_in, self.take_dict]

    def work(self, events: int) -> None:
        with pytracer.annotate(f"turn {self.rng.randrange(6)}"):
            self.workload.run(events)

    def stand_in(self) -> None:
        memory, path = torch.cuda.memory, self.path / "stand_in.pickle"
        pytracer.patch_torch()
        try:
            memory._record_memory_history(max_entries=1000)
            self.work(500)
            memory._dump_snapshot(str(path))
            self.compare(path, "a stand-in's file")
            memory._record_memory_history(None)
        finally:
            pytracer.unpatch_torch()

    def take_dict(self) -> None:
        snapshot = self.tracer.snapshot()
        for device in self.devices:
            reserved = sum(s["total_size"] for s in snapshot["segments"] if s["device"] == device)
            stats = torch.cuda.memory_stats(device)["reserved_bytes.all.current"]
            self.found.check(reserved == stats, f"snapshot(): {reserved} reserved, not {stats}")

    # --- comparison ---

    def stats(self, device: int) -> dict[str, int]:
        stats = torch.cuda.memory_stats(device)
        return {name: stats[f"{key}.all.current"] for name, key in STATS.items()}

    def compare(self, path: Path, what: str, begin: int = 0, bound: int = 0) -> Read:
        """Compare the last values of a file with those of this moment."""
        snapshot, histories = self.read(path)
        for device in self.devices:
            last = {name: int(getattr(histories[device].usage, name)[-1]) for name in EXACT_ALWAYS}
            stats = self.stats(device)
            expected = {name: stats[name] for name in EXACT_ALWAYS}
            self.found.check(last == expected, f"{what}: {last} in the end, not {expected}")
        return snapshot, histories

    def look(self) -> Read:
        """Keep the statistics, dump, and compare all moments that the file includes."""
        snapshot, histories = super().look()
        events = self.tracer.events()
        for device in self.devices:
            marks = events["sequence"][
                (events["device"] == device) & (events["action"] == SNAPSHOT)
            ]
            moments = self.moments[device]
            moments.append((int(marks[-1]), self.stats(device)))
            del moments[:-KEPT_MOMENTS]
            (rows,) = np.nonzero(snapshot.traces[device].action == SNAPSHOT)
            usage, exact = histories[device].usage, ~unsized(histories[device])
            # The last marker is that of the dump, which its file does not have. The file may begin
            # later than the events.
            entries = dict(zip(marks[-2::-1].tolist(), rows[::-1].tolist(), strict=False))
            for mark, stats in moments:
                entry = entries.get(mark)
                if entry is None:
                    continue
                found = {name: int(getattr(usage, name)[entry]) for name in STATS}
                # A trace need not show that expandable segments were switched
                # (pytracer.reading.replay).
                is_exact = bool(exact[entry]) and self.expandable != "toggled"
                names = STATS if is_exact else EXACT_ALWAYS
                wrong = {n: (found[n], stats[n]) for n in names if found[n] != stats[n]}
                self.found.check(not wrong, f"device {device}, event {mark}: {wrong}")
                self.found.count("comparisons with memory_stats()")
                self.found.count("of these of all levels", is_exact)
        return snapshot, histories


def case(case: Case) -> Found:
    program = Program(case)
    found = program.run(case.seconds)
    found.tried = sum(marks[-1][0] for marks in program.moments if marks)
    ooms = sum(torch.cuda.memory_stats(device)["num_ooms"] for device in program.devices)
    found.count("out-of-memory errors survived", ooms)
    program.workload.close()
    return found
