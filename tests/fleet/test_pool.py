"""Tests of the pool of processes, and of a collection that is interrupted."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pool_jobs
import processes
import pytest
from commands import invoke
from fleet_tables import InProcess, all_rows, column, make_run

from pytracer.commands import parallel
from pytracer.fleet.collection import LocalEngine, collect
from pytracer.fleet.memory_budget import SHARE_OF_FREE
from pytracer.fleet.pool import PROCESS_BYTES, Pool, ProcessEndedError

MIB = 2**20


def test_jobs_wait_for_memory() -> None:
    # GIVEN jobs of which only one fits into the budget next to the processes, and one too large
    pool = Pool(pool_jobs.timed, workers=2)
    pool.limit_bytes = 2 * PROCESS_BYTES + 100 * MIB
    jobs = [(0.05, 60 * MIB)] * 4 + [(0.06, 5000 * MIB)] + [(0.05, 60 * MIB)] * 2
    # WHEN they run
    times = sorted(result for _, result in pool.results(jobs) if isinstance(result, tuple))
    pool.close()
    # THEN no two overlap, and none is left out
    assert len(times) == len(jobs)
    assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(times))


def test_jobs_that_fit_share_the_memory() -> None:
    pool = Pool(pool_jobs.timed, workers=2)
    pool.limit_bytes = 2 * PROCESS_BYTES + 100 * MIB
    times = [result for _, result in pool.results([(0.5, 20 * MIB)] * 4)]
    pool.close()
    # Two processes, and the jobs of one run while those of the other do.
    assert len({each[2] for each in times if isinstance(each, tuple)}) == 2


@pytest.mark.parametrize(
    ("limit", "workers"), [(1, 1), (3 * PROCESS_BYTES, 3), (100 * PROCESS_BYTES, 64)]
)
def test_the_budget_bounds_the_number_of_processes(
    limit: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytracer.fleet.pool.free_bytes", lambda: SHARE_OF_FREE * limit)
    assert Pool(pool_jobs.timed, workers=64).workers == workers


@pytest.mark.parametrize("job", [pool_jobs.write_slowly, pool_jobs.large])
def test_processes_are_ended_at_once(tmp_path: Path, job: Callable[[str], object]) -> None:
    # GIVEN a process that writes a file, or has begun to send a result of 500 MB
    pool = Pool(job, workers=1)
    pool._start().send(str(tmp_path / "mark"))
    while not (tmp_path / "mark").exists():
        time.sleep(0.001)
    time.sleep(0.5)
    # WHEN the pool is closed THEN the process has ended, and leaves no unfinished file
    (process,) = pool._processes.values()
    pool.close()
    assert process.exitcode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def test_errors_are_results() -> None:
    pool = Pool(pool_jobs.divide, workers=1)
    found = dict(pool.results([(1, 0), (0, 0), (2, 0)]))
    pool.close()
    assert (found[1], found[2]) == (1.0, 0.5)
    assert isinstance(found[0], ZeroDivisionError)


def test_a_killed_process_costs_one_job() -> None:
    # GIVEN jobs that kill their process, among others
    pool = Pool(pool_jobs.kill_if_negative, workers=2)
    numbers = [1, 2, -1, 3, 4, 5, -2, 6, 7, 8]
    found = dict(pool.results([(number, 0) for number in numbers]))
    pool.close()
    # THEN the others are done
    assert {number for number, result in found.items() if result == number} == {*range(1, 9)}
    for number in (-1, -2):
        assert isinstance(found[number], ProcessEndedError)
        assert "memory ran out" in str(found[number])


def test_an_idle_process_that_was_killed_costs_nothing() -> None:
    pool = Pool(pool_jobs.divide, workers=1)
    assert dict(pool.results([(1, 0)])) == {1: 1.0}
    (process,) = pool._processes.values()
    process.kill()
    process.join()
    assert dict(pool.results([(2, 0)])) == {2: 0.5}
    pool.close()


def test_the_local_engine_makes_the_rows_of_this_process(tmp_path: Path) -> None:
    make_run(tmp_path / "run7", ranks=4, steps=2)
    paths = [str(tmp_path / "run7")]
    collect(paths, tmp_path / "expected", InProcess())
    progress: list[tuple[int, int]] = []
    done = collect(
        paths,
        tmp_path / "table",
        LocalEngine(workers=2),
        on_progress=lambda count, total: progress.append((count, total)),
    )
    assert (done.files, done.unreadable) == (8, [])
    assert all_rows(tmp_path / "table") == all_rows(tmp_path / "expected")
    assert progress == [(count, 8) for count in range(9)]


def test_a_file_whose_process_ended_is_a_row_with_the_reason(tmp_path: Path) -> None:
    class Killed(InProcess):
        def read(self, sources):  # type: ignore[no-untyped-def]
            engine = LocalEngine(workers=1)
            engine._pool = Pool(pool_jobs.killed_by_rank_1, workers=1)
            yield from engine.read(sources)
            engine.close()

    make_run(tmp_path / "run7", ranks=3, steps=1)
    paths = [str(tmp_path / "run7")]
    done = collect(paths, tmp_path / "table", Killed())
    assert (done.files, len(done.unreadable)) == (3, 1)
    assert "died twice" in done.unreadable[0]
    assert {*column(tmp_path / "table", "devices", "rank")} == {0, 2}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_collection_is_no_dataset(tmp_path: Path, number: signal.Signals) -> None:
    # GIVEN a collection of many files, in batches of a few
    make_run(tmp_path / "run7", ranks=10, steps=6)
    table = tmp_path / "table"
    program = (
        "from pytracer.fleet import collection; collection.BATCH_FILES = 3\n"
        "from pytracer.commands.main import main; main()"
    )
    arguments = ["fleet", "collect", str(tmp_path / "run7"), "--output", str(table)]
    command = [sys.executable, "-c", program, *arguments, "--workers", "2"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=processes.environment(), stderr=subprocess.PIPE, text=True
    )
    # WHEN a signal ends it in the middle
    begin = time.monotonic()
    while len([*(table / "files").rglob("*.parquet")]) < 2:
        assert running.poll() is None, running.stderr and running.stderr.read()
        assert time.monotonic() - begin < processes.HANG_S
        time.sleep(0.01)
    running.send_signal(number)
    running.communicate(timeout=processes.HANG_S)
    # THEN a report says that the dataset is not complete
    assert "is not a complete dataset" in invoke("fleet", "report", table, "--sql").output
    if number == signal.SIGKILL:
        assert running.returncode == -number
        assert "not empty" in invoke(*arguments).output
    else:
        assert running.returncode == 128 + number
        assert [*table.iterdir()] == []


def test_processes_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two runs, one file damaged
    for run in ("run6", "run7"):
        paths = make_run(tmp_path / run, ranks=2, steps=2)
    paths[-1].write_bytes(b"")
    commands = (
        ["show", tmp_path / "run7", "--json"],
        ["show", tmp_path / "run7", "--by", "category", "--at", "oom"],
        ["show", tmp_path / "run7", "--leaks"],
        ["diff", tmp_path / "run6", tmp_path / "run7", "--json"],
        ["export", tmp_path / "run7", "--to", "collapsed"],
        ["view", tmp_path / "run7", "-o", tmp_path / "page.html"],
    )
    here = [invoke(*command) for command in commands]
    # WHEN processes read them THEN the answers are the same
    monkeypatch.setattr(parallel, "SMALL_BYTES", 0)
    for command, expected in zip(commands, here, strict=True):
        found = invoke(*command)
        assert (found.exit_code, found.output) == (expected.exit_code, expected.output)
        assert "truncated" in found.output or "cut short" in found.output
