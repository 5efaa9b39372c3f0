"""Rule 5: no stack is walked once thread states may be freed.

Daemon threads are in C, without the GIL and under deep Python stacks, and go on recording while the
interpreter finalises under PYTHONMALLOC=debug, which overwrites what is freed. 100 runs are of the
core without torch, 20 with torch, whose import takes most of the time.

The threads must not come back from C: torch itself aborts then, traced or not, since a thread that
asks for the GIL during finalisation is ended in the middle of a C++ destructor. For a like reason
the process ends before torch's static objects go.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import environment, run

AT_ONCE = 2
THREADS = """
import threading, time

def down(depth, work):
    return down(depth - 1, work) if depth else work()

def start_threads(work, events, frames):
    for depth in (15, 55, 95):
        threading.Thread(target=down, args=(depth, work), daemon=True).start()
    deadline = time.monotonic() + 60
    while len(seen := events()) < 1000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {"down"} <= {frame[1] for stack in seen["stack"][-10:] for frame in frames(stack)}
"""

# Threads that record as fast as they can.
CORE = f"""
from pytracer import _core, lifetime
{THREADS}
owner = _core.Owner([_core.CPU_DEVICE], 20_000, 32, 2**20, 3)
lifetime.prepare_process()
owner.start()
start_threads(
    lambda: _core.testing.record_pairs(2**60, 64),
    lambda: owner.events(),
    lambda stack: owner.frames(int(stack)),
)
"""

# torch's allocator, called by TorchScript, which runs without the GIL until the process ends. The
# first tracer is stopped and written by our exit callback. That one has run when the second starts:
# it records throughout the finalisation.
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
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("program", "runs", "snapshots"), [(CORE, 100, 0), (TORCH, 20, 20)], ids=["core", "torch"]
)
def test_threads_that_record_while_the_interpreter_finalises(
    tmp_path: Path, program: str, runs: int, snapshots: int
) -> None:
    # GIVEN
    env = environment(PYTHONMALLOC="debug")

    def once(number: int) -> tuple[int, str]:
        directory = tmp_path / str(number)
        directory.mkdir()
        done = run(program, cwd=directory, env=env)
        return done.returncode, done.stderr

    # WHEN the process ends, many times
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = Counter(pool.map(once, range(runs)))
    # THEN it never crashes, and what was recorded until then is written
    assert ends == {(0, ""): runs}
    assert len(list(tmp_path.glob("*/snapshot.pickle"))) == snapshots
