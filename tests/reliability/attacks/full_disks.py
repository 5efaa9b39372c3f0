"""Disks that become full, and limits on the size of a file.

A training writes a small snapshot, and then small and large ones, on a small file system in memory
(tmpfs, if mounting is permitted) or under RLIMIT_FSIZE: at steps, on demand with `keep_last`, at
out-of-memory errors, and at the end. Sizes are random, so that writes fail at every stage of a
file.
"""

import contextlib
import logging
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from attack import Budget, Found
from forks import allocate, files, problem_of, run

from pytracer import Tracer

PROMISE = (
    "The training goes on to its end, with a log line about a snapshot that could not be written; "
    "every file with a final name loads completely, no temporary file is left, and the files "
    "written before are as they were."
)
DEVICE = "cpu"
SECONDS = 20

WRITES = 5
KEPT = 2  # the number of kept snapshots on demand
WAIT_SECONDS = 5.0


def work(folder: Path, kind: str, blocks: list[int], limit: int | None) -> None:
    """Write the snapshots of `WRITES`, of these blocks; the limit begins after the first one."""
    failed = Counted()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("pytracer").addHandler(failed)
    options = {
        "steps": {"steps": range(1, WRITES + 1)},
        "demand": {"dump_signal": "SIGUSR2", "keep_last": KEPT},
        "oom": {"max_oom_snapshots": WRITES},
    }[kind]
    written: list[str] = []
    with Tracer(
        folder, device="cpu", all_ranks=True, on_snapshot=written.append, **options
    ) as tracer:
        for number in range(WRITES - 1):
            kept = []
            if kind != "steps":
                tracer.clear()  # the size of a file then depends only on its own blocks
            kept = allocate(blocks[number])
            if kind == "steps":
                tracer.step()
            elif kind == "oom":
                with contextlib.suppress(RuntimeError):
                    torch.empty(1 << 60, dtype=torch.uint8)
            else:
                os.kill(os.getpid(), signal.SIGUSR2)
                # A second failure of the same kind is not logged.
                seconds = 0.2 if failed.records else WAIT_SECONDS
                _wait(lambda number=number: len(written) + failed.records > number, seconds)
            if number == 0:
                shutil.copy(written[0], folder.with_suffix(".first"))
                if limit is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        kept = []
        kept = allocate(blocks[-1])
    print(*written, sep="\n")
    print("trained", len(kept), flush=True)


class Counted(logging.Handler):
    """A handler that counts the logged records."""

    records = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.records += 1


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Wait, up to a time limit, until a dump on demand is written or its failure is logged."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[str | None]:
    """Mount a tmpfs; yield the reason if that is not possible, or None."""
    options = f"size={size}"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        problem = done.stderr.strip() or "mount failed" if done.returncode else None
    except OSError as error:
        problem = str(error)
    try:
        yield problem
    finally:
        if problem is None:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def check(folder: Path, job: Callable[[], None]) -> tuple[list[str], int]:
    """Run a job whose disk becomes full; return the problems and the number of missing files."""
    ended = run(job)
    snapshots, temporary = files(folder)
    problems = [problem for path in snapshots if (problem := problem_of(path))]
    if ended.status != 0 or "trained" not in ended.output or "Traceback" in ended.output:
        problems.append(f"the training ended with {ended.status}: {ended.output[-300:]!r}")
    if temporary:
        problems.append(f"left: {temporary[0].name}")
    written = [line for line in ended.output.splitlines() if line.startswith(str(folder))]
    on_demand = [path for path in written if "demand_" in path]
    kept = {*written} - {*on_demand[:-KEPT]}
    if {*map(str, snapshots)} != kept:
        lost = [Path(path).parent.name for path in sorted(kept - {*map(str, snapshots)})]
        more = [path.parent.name for path in snapshots if str(path) not in kept]
        problems.append(f"files that should be there: {lost}; that should not: {more}")
    first = folder.with_suffix(".first")
    if first.exists():
        there = Path(written[0]) if written else folder
        if there in snapshots and first.read_bytes() != there.read_bytes():
            problems.append("the file written first was changed")
        first.unlink()
    missing = WRITES - len(written)
    lines = [line for line in ended.output.splitlines() if "not written" in line]
    if bool(lines) != (missing > 0) or len(lines) > max(0, missing):
        problems.append(f"{missing} files are missing, {len(lines)} log lines: {lines}")
    return problems, missing


def attack(budget: Budget) -> Found:
    rng, found = budget.rng, Found("trainings")
    for number in found.turns(budget, least=2):
        folder = budget.folder / f"disk{number}"
        folder.mkdir()
        kind = rng.choice(("steps", "demand", "oom"))
        size = rng.randrange(5, 60) * 4096
        blocks = [1, *(rng.choice((1, 50, 500, 2000)) for _ in range(WRITES - 1))]
        by_limit = number % 2 == 1
        with contextlib.ExitStack() as stack:
            if not by_limit and (problem := stack.enter_context(small_disk(folder, size))):
                found.skipped = [f"tmpfs: {problem}"]
                by_limit = True
            job = partial(work, folder, kind, blocks, size if by_limit else None)
            problems, missing = check(folder, job)
        how = "RLIMIT_FSIZE" if by_limit else "tmpfs"
        name = f"seed {budget.seed}, training {number} ({kind}, {how} of {size} bytes)"
        found.fail(name, problems)
        found.count("snapshots that did not fit", missing)
        found.count("of the trainings, on tmpfs", not by_limit)
        shutil.rmtree(folder)
    return found
