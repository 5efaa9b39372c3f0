"""Check the GIL rule: a hook never waits for the GIL, whichever thread holds it and for how long.

Hooks run under the allocator's device lock. If a hook waited for the GIL there, and the thread with
the GIL waited for this lock, the process would deadlock.
"""

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import processes
import pytest
import torch
from accelerator.extension import Churn, Extension, GilHold
from amount import amount
from thread_failures import repeated

from pytracer import ACTIONS, Tracer

HOLD_SECONDS = 0.2
UNLIMITED = 1 << 60  # pairs
PAIR = ["alloc", "free_requested", "free_completed"]


@contextmanager
def counting() -> Iterator[ctypes.c_uint64]:
    """Run a thread that counts as fast as it gets the GIL."""
    counter = ctypes.c_uint64()

    def count() -> None:
        counter.value += 1

    with repeated(count):
        yield counter


def recorded(tracer: Tracer, device: int) -> int:
    (counts,) = (entry for entry in tracer.stats()["devices"] if entry["device"] == device)
    number: int = counts["recorded"]
    return number


@pytest.mark.usefixtures("two_devices")
def test_a_cpp_thread_continues_while_the_gil_is_held(
    backend: str,
    device: ModuleType,
    extension: Extension,
    record_property: Callable[[str, object], None],
) -> None:
    # GIVEN a recording, and a C++ thread that has allocated its segment
    with Tracer(device=backend, trace_alloc_max_entries=10_000) as tracer:
        churn = Churn(extension, f"{backend}:1", samples=1_000_000)
        churn.allow(1)
        churn.finish()
        before = recorded(tracer, 1)
        # WHEN it allocates and frees while another thread holds the GIL in C
        with counting() as counter:
            churn.allow(UNLIMITED)
            during = churn.hold_gil(HOLD_SECONDS, counter)
        samples = churn.end()
        events = tracer.events()

        # THEN the GIL was held: the counting thread did not count
        assert during.counted == 0
        # AND the C++ thread was not delayed
        assert during.pairs > 5_000
        longest_cpu_ms, longest_wall_ms = samples.max(axis=0) / 1e6
        assert longest_wall_ms < HOLD_SECONDS * 1000 / 2
        # AND every pair was recorded: a pair frees one block and allocates another
        pairs = len(samples)
        assert pairs > during.pairs
        # A free that completes at once is one event. The end of the thread frees the last block.
        assert recorded(tracer, 1) - before == 2 * (pairs - 1) + 1

    # AND all events are right: in order, of one block at a time, without Python frames
    events = events[events["device"] == 1]
    assert len({*events["sequence"].tolist()}) == 10_000
    assert not events["stack"].any()
    actions = np.array([PAIR.index(ACTIONS[number]) for number in events["action"]])
    assert ((actions[1:] - actions[:-1]) % 3 == 1).all()
    of_same_block = actions[1:] != 0
    assert (events["address"][1:] == events["address"][:-1])[of_same_block].all()
    assert (events["size_bytes"][1:] == events["size_bytes"][:-1])[of_same_block].all()

    for name, value in (("cpu", longest_cpu_ms), ("wall", longest_wall_ms)):
        record_property(f"longest_pair_{name}_ms", round(float(value), 3))
    print(f"{pairs} pairs, the longest: {longest_cpu_ms:.3f} ms CPU, {longest_wall_ms:.3f} ms wall")


def test_a_backward_continues_while_the_gil_is_held(
    backend: str, device: ModuleType, extension: Extension
) -> None:
    if backend == "npu":
        pytest.skip("torch_npu's own operators need the GIL to create a tensor, traced or not")
    # GIVEN autograd's threads, and a graph that is so long that its backward takes a while
    start = torch.ones(64, device=backend, requires_grad=True)
    end = start
    for _ in range(30_000):
        end = end * 1.5
    (start * 1.5).sum().backward()
    churn = Churn(extension, f"{backend}:0")
    holds: list[GilHold] = []

    def hold_gil() -> None:
        if not holds and recorded(tracer, 0) >= before + 100:
            holds.append(churn.hold_gil(HOLD_SECONDS, ctypes.c_uint64()))

    # WHEN another thread holds the GIL after the backward has begun
    with Tracer(device=backend, trace_alloc_max_entries=200_000) as tracer:
        total = end.sum()
        before = recorded(tracer, 0)
        with repeated(hold_gil):
            total.backward()
        device.synchronize()
        events = tracer.events()
    churn.end()

    # THEN autograd's thread allocated hundreds of times in the meantime, and all was recorded
    (hold,) = holds
    events = events[events["device"] == 0]
    margin_ns = 10_000_000  # the clock may have been adjusted in the meantime
    during = events[events["time_ns"] > hold.began_ns + margin_ns]
    during = during[during["time_ns"] < hold.ended_ns - margin_ns]
    allocations = during[during["action"] == ACTIONS.index("alloc")]
    assert len(allocations) > 200
    assert (events["action"] == ACTIONS.index("alloc")).sum() > 30_000
    # AND these allocations have no Python frames
    assert not allocations["stack"].any()


ROUNDS = """
import faulthandler
import functools
import sys
from pathlib import Path

import torch
if sys.argv[1] == "npu":
    import torch_npu
from accelerator.extension import Churn, Extension
from thread_failures import repeated

import pytracer

backend, rounds = sys.argv[1], int(sys.argv[2])
faulthandler.dump_traceback_later(600, exit=True)  # needs no GIL
sys.setswitchinterval(1e-4)
getattr(torch, backend).init()
extension = Extension(Path(sys.argv[3]), is_compiled=True)
done = [0, 0]


def with_gil(index):  # waits for the device's lock while it holds the GIL
    extension.allocate_and_free_with_gil(f"{backend}:{index}", 1000 + index)
    done[index] += 1


traces = []
with pytracer.Tracer(device=backend, trace_alloc_max_entries=2_000) as tracer:
    churns = [Churn(extension, f"{backend}:{index}", held=8) for index in (0, 1)]
    with repeated(*(functools.partial(with_gil, index) for index in (0, 1))):
        for number in range(rounds):
            for churn in churns:
                churn.allow(10)
            if number % 4 == 0:
                tracer.dump("now.pickle")
            elif number % 4 == 1:
                tracer.events()
            else:
                traces += map(len, tracer.snapshot()["device_traces"])
    for churn in churns:
        churn.finish()
        churn.end()
    counts = tracer.stats()["devices"]
for index in (0, 1):
    # A pair is an allocation and its free, which is two events if it was read when it was only
    # requested. The rest are markers and a segment.
    remaining = counts[index]["recorded"] - 2 * (done[index] + 10 * rounds)
    assert rounds / 2 < remaining < 2 * rounds + 10, (counts, done)
    assert counts[index]["live_blocks"] == 0
assert min(done) > rounds / 10, done
# Events may overwrite such a small ring before it is read. Then the trace is empty.
read = [trace for trace in traces if trace]
assert read, len(traces)
print("done", done, f"{len(read)} of {len(traces)} traces")
"""


@pytest.mark.usefixtures("two_devices")
def test_no_deadlock(backend: str, extension: Extension, tmp_path: Path) -> None:
    # WHEN snapshots are taken while threads allocate, some without the GIL and some that hold it
    try:
        rounds = amount(50, 1_500)
        done = processes.run(ROUNDS, backend, rounds, extension.folder, cwd=tmp_path)
    except subprocess.TimeoutExpired as expired:
        pytest.fail(f"{expired}: {expired.stderr!r}")
    # THEN no thread hangs, and no event is missing
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done")
    print(done.stdout)
