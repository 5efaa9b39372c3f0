"""Random work on simulated CUDA for as long as the budget lasts, compared with `memory_stats()`.

torch's real CUDA allocator runs on simulated devices: two devices, streams, threads, memory pools,
graphs, frees that wait, segments that are expandable or not, `empty_cache()`, and out-of-memory
errors that the program survives. At the same time tracers with small bounds dump, clear, take steps
and phases, nest, and stand in for torch's own recorder. At many moments the allocator's own
statistics are kept; every later file whose trace includes such a moment must show the same values
there.
"""

import gc
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cases
import numpy as np
from attack import Budget, Outcome
from cases import Case, Found
from flat import check_flat
from memory import status_bytes

PROMISE = (
    "For as long as it runs, every file's levels are those of the allocator at the same moments, "
    "every bound holds, and the memory of the process stays flat."
)
DEVICE = "cuda"
SECONDS = 40
ENTRIES, STACK_BYTES = 4000, 2**20
TOLERANCE_BYTES = 24 * 2**20
KEPT_MOMENTS = 3000
EXPANDABLE = ("toggled", "on", "off")


def attack(budget: Budget) -> Outcome:
    return cases.attack_by_cases(
        __name__, budget, "events of the allocator", max(20, budget.seconds / 3)
    )


class Program:
    """The random work and the known facts about it."""

    def __init__(self, case: Case) -> None:
        import torch
        from accelerator.workload import Workload

        from pytracer import Tracer

        self.cuda = torch.cuda
        self.cuda.init()
        self.rng = case.rng
        self.path = case.path
        self.found = Found()
        self.expandable = EXPANDABLE[case.number % len(EXPANDABLE)]
        self.workload = Workload(
            "cuda",
            self.rng.randrange(10**6),
            expandable=self.expandable,
            delays=self.rng.random() < 0.7,
            concurrent=True,
        )
        self.devices = range(min(2, self.cuda.device_count()))
        bounds = {"trace_alloc_max_entries": ENTRIES, "max_stack_bytes": STACK_BYTES}
        self.tracer = Tracer(device="cuda", **bounds)
        self.windows = Tracer(
            self.path / "windows",
            device="cuda",
            steps=range(1, 10**9, 2),
            discrete=["turn 1", "turn 3"],
            **bounds,
        )
        # For each device: numbers of markers in the trace, with the statistics of these moments.
        self.moments: list[list[tuple[int, dict[str, int]]]] = [[] for _ in self.devices]
        self.resident: list[int] = []
        self.turns: list[Callable[[], None]] = [
            self.clear,
            self.nest,
            self.nest,
            self.stand_in,
            self.take_dict,
            self.dump_meanwhile,
            self.step,
            self.step,
        ]

    def work(self, events: int) -> None:
        from pytracer import annotate

        with annotate(f"turn {self.rng.randrange(6)}"):
            self.workload.run(events)

    # --- operations of tracers ---

    def clear(self) -> None:
        self.tracer.clear()
        self.work(200)

    def step(self) -> None:
        self.windows.step()
        self.work(200)

    def nest(self) -> None:
        from pytracer import Tracer

        forward = self.rng.choice((True, False, None))
        bound, written = self.rng.choice((10, 500, 3000)), list[str]()
        options = {"trace_alloc_max_entries": bound, "forward_stacks": forward}
        with Tracer(
            self.path / "nested.pickle", device="cuda", on_snapshot=written.append, **options
        ):
            self.work(500)
        path = Path(written[-1])  # files of out-of-memory errors come first
        self.check_file(path, "a nested tracer's file")
        for name in written:
            Path(name).unlink(missing_ok=True)

    def stand_in(self) -> None:
        import pytracer

        memory = self.cuda.memory
        pytracer.patch_torch()
        try:
            memory._record_memory_history(max_entries=1000)
            self.work(500)
            memory._dump_snapshot(str(self.path / "stand_in.pickle"))
            self.check_file(self.path / "stand_in.pickle", "a stand-in's file")
            memory._record_memory_history(None)
        finally:
            pytracer.unpatch_torch()

    def take_dict(self) -> None:
        snapshot = self.tracer.snapshot()
        for device in self.devices:
            reserved = sum(s["total_size"] for s in snapshot["segments"] if s["device"] == device)
            stats = self.cuda.memory_stats(device)["reserved_bytes.all.current"]
            self.found.check(reserved == stats, f"snapshot(): {reserved} reserved, not {stats}")

    def dump_meanwhile(self) -> None:
        problems: list[str] = []

        def dump() -> None:
            try:
                for _ in range(3):
                    self.tracer.dump(self.path / "meanwhile.pickle")
            except BaseException as error:
                problems.append(f"a thread that dumps ended: {error!r}")

        thread = threading.Thread(target=dump, daemon=True)
        thread.start()
        self.work(500)
        thread.join(50)
        self.found.check(not thread.is_alive(), "a thread that dumps hangs")
        self.found.problems += problems
        self.check_file(self.path / "meanwhile.pickle", None)

    # --- comparison ---

    def stats(self, device: int) -> dict[str, int]:
        from accelerator.test_history import STATS

        stats = self.cuda.memory_stats(device)
        return {name: stats[f"{key}.all.current"] for name, key in STATS.items()}

    def check_file(self, path: Any, now: str | None) -> Any:
        """Replay a file; if `now` names it, its last values must be those of this moment."""
        from accelerator.test_history import EXACT_ALWAYS

        from pytracer.analysis.history import replay
        from pytracer.reading import load

        snapshot = load(path)
        histories = [replay(snapshot, device) for device in self.devices]
        for device in self.devices if now is not None else ():
            last = {name: int(getattr(histories[device].usage, name)[-1]) for name in EXACT_ALWAYS}
            stats = self.stats(device)
            expected = {name: stats[name] for name in EXACT_ALWAYS}
            self.found.check(last == expected, f"{now}: {last} in the end, not {expected}")
        return snapshot, histories

    def look(self) -> None:
        """Keep the statistics, dump, and compare all moments that the file includes."""
        from accelerator.test_history import EXACT_ALWAYS, STATS, unsized

        from pytracer.reading.snapshot import SNAPSHOT

        path = self.path / "look.pickle"
        begin = time.monotonic()
        self.tracer.dump(path)
        self.found.highest("longest dump, s", time.monotonic() - begin)
        events = self.tracer.events()
        snapshot, histories = self.check_file(path, "a file")
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
        self.check_bounds()

    def check_bounds(self) -> None:
        stats = self.tracer.stats()
        stacks = stats["stacks"]
        self.found.check(stacks["bytes"] <= stacks["max_bytes"] == STACK_BYTES, f"{stacks}")
        for device in stats["devices"]:
            within = device["ring_bytes"] <= device["max_ring_bytes"] == (ENTRIES + 1) * 48
            self.found.check(within and device["held"] <= ENTRIES, f"{device}")
            self.found.check(device["live_dropped"] == 0, f"{device}")
        self.found.check(stats["failures"] == 0, f"{stats['failures']} files were not written")

    def finish(self) -> None:
        """Compute the figures, and check that memory stayed flat."""
        found = self.found
        recorded = [marks[-1][0] for marks in self.moments if marks]
        found.tried = sum(recorded)
        ooms = sum(self.cuda.memory_stats(device)["num_ooms"] for device in self.devices)
        found.count("out-of-memory errors survived", ooms)
        found.count("files of steps and phases", self.files)
        check_flat(self.resident, TOLERANCE_BYTES, found)

    files = 0

    def sweep_files(self) -> None:
        """Read one file of a step, and delete all, because a long run would fill the disk."""
        paths = sorted((self.path / "windows").rglob("*.pickle"))
        self.files += len(paths)
        for path in paths[-1:]:
            try:
                from pytracer.reading import load

                load(path)
            except Exception as error:
                self.found.problems.append(f"{path} does not load: {error!r}")
        shutil.rmtree(self.path / "windows", ignore_errors=True)


def case(case: Case) -> Found:
    deadline = time.monotonic() + case.seconds
    program = Program(case)
    with program.tracer, program.windows:
        while True:
            program.work(program.rng.choice((50, 300, 1500)))
            program.rng.choice(program.turns)()
            program.look()
            program.sweep_files()
            gc.collect()
            program.resident.append(status_bytes("VmRSS"))
            if program.found.problems or time.monotonic() > deadline:
                break
    program.finish()
    program.workload.close()
    return program.found
