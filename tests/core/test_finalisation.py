"""Check that no stack is walked once thread states may be freed (rule 5).

Daemon threads run in C, without the GIL and under deep Python stacks. They keep recording while the
interpreter finalises under PYTHONMALLOC=debug, which overwrites freed memory. Most runs use the
core without torch, because the import of torch takes most of the time.

The threads must not return from C. A thread that asks for the GIL during finalisation is ended in
the middle of a C++ destructor, and torch then aborts, traced or not. For a similar reason the
process ends before the destructors of torch's static objects run.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from amount import amount
from processes import environment, run

CONCURRENT_RUNS = 2
THREADS = """
import threading, time

def down(depth, work):
    return down(depth - 1, work) if depth else work()

def start_threads(work, events, frames):
    for depth in (15, 55, 95):
        threading.Thread(target=down, args=(depth, work), daemon=True).start()
    deadline = time.monotonic() + 600
    while len(seen := events()) < 1000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {"down"} <= {frame[1] for stack in seen["stack"][-10:] for frame in frames(stack)}
"""

# Threads that record as fast as they can.
CORE = f"""
from pytracer import _core
from pytracer.tracing import process
{THREADS}
session = _core.Session([_core.CPU_DEVICE], 20_000, 32, 2**20, 3)
process.prepare_process()
session.start()
start_threads(
    lambda: _core.testing.record_pairs(2**60, 64),
    lambda: session.events(),
    lambda stack: session.frames(int(stack)),
)
"""

# TorchScript calls torch's allocator without the GIL until the process ends. pytracer's exit
# callback stops the first tracer and writes its snapshot. The second tracer starts after this
# callback, so it records during the whole finalisation.
TORCH = f"""
import atexit, ctypes
import torch
from pytracer import Tracer
{THREADS}
unit = torch.jit.CompilationUnit('''
def churn(turns: int):
    kept = [torch.empty([1])]
    for turn in range(turns):
        kept[0] = torch.empty([1 + turn % 1000])
    return kept[0]
''')
late = Tracer(trace_alloc_max_entries=20_000)
atexit.register(late.start)
tracer = Tracer("snapshot.pickle", trace_alloc_max_entries=20_000).start()
start_threads(
    lambda: unit.churn(2**60),
    tracer.events,
    lambda stack: [tuple(frame.values()) for frame in tracer.frames(int(stack))],
)
libc = ctypes.CDLL(None)
libc.on_exit(libc._exit, None)  # C's first exit handler, called with the exit status
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "runs", "snapshots"),
    [(CORE, amount(10, 50), 0), (TORCH, amount(2, 10), amount(2, 10))],
    ids=["core", "torch"],
)
def test_threads_that_record_while_the_interpreter_finalises(
    tmp_path: Path, program: str, runs: int, snapshots: int
) -> None:
    # GIVEN
    env = environment(PYTHONMALLOC="debug")

    def run_program(number: int) -> tuple[int, str]:
        directory = tmp_path / str(number)
        directory.mkdir()
        done = run(program, cwd=directory, env=env)
        return done.returncode, done.stderr

    # WHEN the process ends, many times
    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        ends = Counter(pool.map(run_program, range(runs)))
    # THEN no process crashes, and each writes the events that were recorded before its exit
    assert ends == {(0, ""): runs}
    assert len(list(tmp_path.glob("*/snapshot.pickle"))) == snapshots
