"""Check that no stack is walked once thread states may be freed (rule 5).

Daemon threads run in C, without the GIL and under deep Python stacks. They keep recording while the
interpreter finalises under PYTHONMALLOC=debug, which overwrites freed memory. They use the core
without torch, whose import takes long; tests/reliability/attacks/daemon_threads_at_exit.py has it.

The threads must not return from C: one that asks for the GIL during finalisation is ended.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from amount import amount
from processes import environment, run

CONCURRENT_RUNS = 2
PROGRAM = """
import threading, time
from pytracer import _core
from pytracer.tracing import process

def down(depth):
    return down(depth - 1) if depth else _core.testing.record_pairs(2**60, 64)

session = _core.Session([_core.CPU_DEVICE], 20_000, 32, 2**20, 3)
process.prepare_process()
session.start()
for depth in (15, 55, 95):
    threading.Thread(target=down, args=[depth], daemon=True).start()
deadline = time.monotonic() + 600
while len(seen := session.events()) < 1000:
    assert time.monotonic() < deadline
    time.sleep(0.01)
stacks = map(session.frames, seen["stack"][-10:].tolist())
assert {"down"} <= {frame[1] for frames in stacks for frame in frames}
"""


@pytest.mark.slow
def test_threads_that_record_while_the_interpreter_finalises(tmp_path: Path) -> None:
    runs, env = amount(10, 50), environment(PYTHONMALLOC="debug")

    def run_program(number: int) -> tuple[int, str]:
        directory = tmp_path / str(number)
        directory.mkdir()
        done = run(PROGRAM, cwd=directory, env=env)
        return done.returncode, done.stderr

    # WHEN the process ends, many times
    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        ends = Counter(pool.map(run_program, range(runs)))
    # THEN no process crashes
    assert ends == {(0, ""): runs}
