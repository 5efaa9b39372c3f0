"""Processes that are killed by SIGKILL at random moments of a dump.

A process writes snapshots all the time: of steps, on demand by a signal (with and without
`keep_last`), at the end of a recording, at an out-of-memory error, or repeatedly to one file. It is
killed after a random time. Then every file with a snapshot's name is unpickled to its end, and its
live blocks are counted in two ways.
"""

import contextlib
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from attack import Budget, Found
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


def attack(budget: Budget) -> Found:
    logging.disable()  # about two snapshots of one instant, for example
    found = Found("processes killed")
    for number in found.turns(budget):
        kind = KINDS[number % len(KINDS)]
        folder = budget.folder / str(number)
        folder.mkdir()
        with forked(lambda kind=kind, folder=folder: kind(folder)) as job:  # type: ignore[misc]
            while not files(folder)[0] and job.is_running():
                time.sleep(0.001)
            time.sleep(budget.rng.uniform(0, 0.1))
            os.kill(job.pid, signal.SIGKILL)
        snapshots, left = files(folder)
        problems = [problem for path in snapshots if (problem := problem_of(path))]
        if job.status != -signal.SIGKILL:
            problems.append(f"it ended by itself: {job}")
        if len(left) > 1:
            problems.append(f"{len(left)} temporary files")
        found.fail(f"seed {budget.seed}, process {number}, {kind.__name__}", problems)
        found.count("complete snapshots found", len(snapshots))
        found.count("kills in the middle of a dump", len(left))
        shutil.rmtree(folder)
    return found
