"""Processes that are killed by SIGKILL at random moments of a dump.

A process writes snapshots all the time: of steps, on demand by a signal (with and without
`keep_last`), at the end of a recording, at an out-of-memory error, or repeatedly to one file. It is
killed after a random time. Then every file with a snapshot's name is unpickled to its end, and its
live blocks are counted in two ways.
"""

import contextlib
import logging
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from attack import Budget, Outcome
from forks import allocate, files, forked, problem_of

from pytracer import Tracer

PROMISE = (
    "After SIGKILL every file with a final name loads completely, and anything else is a "
    ".pytracer-*.tmp file, at most one for each thread that was writing."
)
DEVICE = "cpu"
SECONDS = 20

BLOCKS = 3000


def of_steps(folder: Path) -> None:
    with Tracer(folder, device="cpu", steps=range(1, 10**9), all_ranks=True) as tracer:
        while True:
            kept = allocate(BLOCKS)
            tracer.step()
            del kept


def on_demand(folder: Path, keep_last: int | None = None) -> None:
    options = {"dump_signal": "SIGUSR2", "keep_last": keep_last, "all_ranks": True}
    with Tracer(folder, device="cpu", **options):  # type: ignore[arg-type]
        kept = allocate(BLOCKS)
        while kept:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.001)


def on_demand_and_kept(folder: Path) -> None:
    on_demand(folder, keep_last=2)


def at_the_end(folder: Path) -> None:
    while True:
        with Tracer(folder, device="cpu", all_ranks=True):
            kept = allocate(BLOCKS)
        del kept


def out_of_memory(folder: Path) -> None:
    with Tracer(folder, device="cpu", max_oom_snapshots=1000):
        kept = allocate(BLOCKS)
        while kept:
            with contextlib.suppress(RuntimeError):
                torch.empty(1 << 60, dtype=torch.uint8)


def one_file(folder: Path) -> None:
    with Tracer(device="cpu") as tracer:
        kept = allocate(BLOCKS)
        while kept:
            tracer.dump(folder / "same.pickle")


KINDS: tuple[Callable[[Path], None], ...] = (
    *(of_steps, on_demand, on_demand_and_kept, at_the_end, out_of_memory, one_file),
)


def attack(budget: Budget) -> Outcome:
    logging.disable()  # about two snapshots of one instant, for example
    rng = random.Random(budget.seed)
    deadline = time.monotonic() + budget.seconds
    outcome = Outcome(0, "processes killed", [], {})
    complete = temporary = 0
    while outcome.tried == 0 or time.monotonic() < deadline:
        kind = KINDS[outcome.tried % len(KINDS)]
        folder = budget.folder / str(outcome.tried)
        folder.mkdir()
        name = f"seed {budget.seed}, process {outcome.tried}, {kind.__name__}"
        with forked(lambda kind=kind, folder=folder: kind(folder)) as job:  # type: ignore[misc]
            while not files(folder)[0] and job.running():
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.1))
            job.kill()
        snapshots, left = files(folder)
        problems = [problem for path in snapshots if (problem := problem_of(path))]
        if job.ended.status != -signal.SIGKILL:
            problems.append(f"it ended by itself: {job.ended}")
        if len(left) > 1:
            problems.append(f"{len(left)} temporary files")
        outcome.failures += [f"{name}: {problem}" for problem in problems]
        outcome.tried += 1
        complete += len(snapshots)
        temporary += len(left)
        shutil.rmtree(folder)
    outcome.figures = {
        "complete snapshots found": complete,
        "kills in the middle of a dump": temporary,
    }
    return outcome
