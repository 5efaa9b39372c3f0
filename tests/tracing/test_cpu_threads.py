"""Is a recording right, and bounded, while threads allocate?"""

import pickle
import random
import threading
import time
from pathlib import Path
from types import FunctionType

import pytest
import torch
import viewers
from amount import amount
from core_events import Frames
from cpu_events import BYTE, Block, Event, block, blocks_of, counts, events_of, run_together
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pytracer import Tracer

pytestmark = pytest.mark.usefixtures("no_collector")


EVENT_BYTES = 48


def named(function: FunctionType, name: str) -> FunctionType:
    """Return the function under another name, which identifies its frames."""
    code = function.__code__.replace(co_name=name)
    return FunctionType(code, function.__globals__, name)


def churn(seed: int, operations: int, pool: list[Tensor], log: list[tuple[str, Block]]) -> None:
    """Allocate, free blocks of this and other threads, and log these operations."""
    dice = random.Random(seed)
    for _ in range(operations):
        tensor = None
        if dice.random() < 0.55:
            tensor = torch.empty(dice.randint(1, 5000), dtype=BYTE)
            log.append(("alloc", block(tensor)))
            pool.append(tensor)
        elif pool:
            try:
                tensor = pool.pop(dice.randrange(len(pool)))
            except (IndexError, ValueError):  # another thread took the last element
                continue
            log.append(("free_completed", block(tensor)))
        del tensor


@given(
    seed=st.integers(0, 2**32),
    threads=st.integers(1, 4),
    operations=st.integers(1, 300),
    bound=st.integers(1, 400) | st.just(100_000),
)
@settings(max_examples=60, deadline=None)
def test_random_work_on_threads(seed: int, threads: int, operations: int, bound: int) -> None:
    # GIVEN threads that allocate and free at random, including each other's blocks
    pool: list[Tensor] = []
    logs: list[list[tuple[str, Block]]] = [[] for _ in range(threads)]
    # WHEN they run in a recording
    with Tracer(trace_alloc_max_entries=bound) as tracer:
        run_together(
            [
                lambda n=n: named(churn, f"churn{n}")(seed + n, operations, pool, logs[n])
                for n in range(threads)
            ]
        )

    # THEN the counts are consistent
    total = sum(map(len, logs))
    stats = counts(tracer)
    assert (stats["recorded"], stats["held"]) == (total, min(total, bound))
    assert stats["overwritten"] == total - stats["held"]
    assert stats["unknown_frees"] == stats["live_dropped"] == 0
    assert stats["ring_bytes"] == stats["held"] * EVENT_BYTES
    rows, events = tracer.events(), events_of(tracer)
    first = int(rows["sequence"][0]) if len(rows) else 0
    assert rows["sequence"].tolist() == list(range(first, first + stats["held"]))

    # AND each thread's events are the last of its operations, in the same order
    for n, log in enumerate(logs):
        mine = [i for i, event in enumerate(events) if event.frames[0][1] == f"churn{n}"]
        assert [(events[i].action, events[i].block) for i in mine] == log[len(log) - len(mine) :]
        assert sorted(rows["time_ns"][mine]) == rows["time_ns"][mine].tolist()
    assert all(event.frames[0][1].startswith("churn") for event in events)

    # AND the live blocks are those that the program holds, and those at the end of a replay
    snapshot = tracer.snapshot()
    viewers.check_snapshot(snapshot)
    blocks = blocks_of(snapshot)
    assert blocks.keys() == {block(tensor) for tensor in pool}
    if stats["overwritten"] == 0:
        assert replay(events) == blocks


def replay(events: list[Event]) -> dict[Block, Frames]:
    alive: dict[int, Event] = {}
    for event in events:
        if event.action == "alloc":
            assert event.address not in alive, "allocated twice while alive"
            alive[event.address] = event
        else:
            assert alive.pop(event.address).size == event.size
    return {event.block: event.frames for event in alive.values()}


def test_64_threads() -> None:
    # GIVEN 64 threads that start together
    barrier = threading.Barrier(64, timeout=600)
    pairs, kept = 300, []

    def work() -> None:
        barrier.wait()
        for n in range(pairs):
            torch.empty(n + 1)
        kept.append(torch.empty(7))

    # WHEN they allocate
    with Tracer() as tracer:
        run_together([work] * 64)
    # THEN no event is lost
    stats = counts(tracer)
    assert stats["recorded"] == stats["held"] == 64 * (2 * pairs + 1)
    assert stats["live_blocks"] == len(kept) == 64
    assert replay(events_of(tracer)).keys() == {block(tensor) for tensor in kept}
    viewers.check_snapshot(tracer.snapshot())


# The script runs without the GIL, so that threads allocate while another takes a snapshot.
SCRIPT = torch.jit.CompilationUnit("""
def replace(count: int, turns: int):
    blocks = [torch.empty([1])]
    for turn in range(count - 1):
        blocks.append(torch.empty([2 + turn % 16]))
    for turn in range(turns):
        blocks[turn % count] = torch.empty([1 + turn % 16])
    return blocks[0]
""")


def replace_blocks(count: int, done: threading.Event) -> None:
    while not done.is_set():
        SCRIPT.replace(count, 50_000)


def wait_for_work() -> None:
    with Tracer() as tracer:
        while counts(tracer)["recorded"] < 10_000:
            time.sleep(0.001)


@pytest.mark.slow
def test_snapshots_while_threads_allocate(tmp_path: Path) -> None:
    # GIVEN threads that replace their blocks, and a ring that laps all the time, but has room for
    # both events of a block
    path = tmp_path / "snapshot.pickle"
    done = threading.Event()
    overwritten = []

    def work() -> None:
        replace_blocks(1000, done)

    # WHEN snapshots are taken
    def look() -> None:
        try:
            wait_for_work()
            for turn in range(8):
                tracer.dump(path)
                snapshot = pickle.loads(path.read_bytes()) if turn % 2 else tracer.snapshot()
                # THEN each snapshot is of one instant: undoing its trace from its blocks never
                # fails
                viewers.check_snapshot(snapshot)
                (device,) = snapshot["pytracer"]["devices"]
                overwritten.append(device["overwritten"])
                held = sum(
                    event["action"] in ("alloc", "free_completed")
                    for event in snapshot["device_traces"][0]
                )
                assert held == device["recorded"] - device["overwritten"] <= 6000
        finally:
            done.set()

    with Tracer(trace_alloc_max_entries=6000) as tracer:
        run_together([look, work, work])
    assert overwritten == sorted(overwritten)
    assert overwritten[-1] > 0


@pytest.mark.slow
def test_tracers_come_and_go_while_threads_allocate() -> None:
    # GIVEN threads that allocate
    done = threading.Event()

    def work() -> None:
        replace_blocks(10, done)

    # WHEN tracers start, stop, are read and dropped, and each is at times the only one
    def trace() -> None:
        try:
            wait_for_work()
            for turn in range(amount(300, 5000)):
                tracer = Tracer(trace_alloc_max_entries=1 + turn).start()
                if turn % 3:
                    tracer.stop()
                    stats = counts(tracer)
                    # THEN the counts of each tracer are consistent
                    assert stats["recorded"] == stats["held"] + stats["overwritten"]
                    assert len(tracer.events()) == stats["held"] <= 1 + turn
                tracer.stop()
                del tracer
        finally:
            done.set()

    run_together([trace, work, work])


def test_bytes_held_against_their_bounds() -> None:
    # GIVEN small bounds
    readings = []
    with Tracer(trace_alloc_max_entries=300, max_stack_bytes=2**16) as tracer:
        kept = []
        for turn in range(500):
            # WHEN new functions with long names allocate all the time, and the events are read at
            # times
            name = f"f{turn}_{'x' * 500}"
            source = f"def {name}(): kept.append(torch.empty({turn + 1}))\n{name}()"
            code = compile(source, f"<{turn}>" * 100, "exec")
            exec(code, {"torch": torch, "kept": kept})
            if turn % 50 == 0:
                readings.append(tracer.stats())
                tracer.events()
                readings.append(tracer.stats())
    readings.append(tracer.stats())
    without_stack = sum(not event.frames for event in events_of(tracer))
    del (
        tracer
    )  # a failed test keeps its variables: this tracer would fill the stack table for other tests

    # THEN the memory never exceeds its bounds, whether or not the events are read
    for reading in readings:
        stacks, (device,) = reading["stacks"], reading["devices"]
        assert (stacks["max_bytes"], device["max_ring_bytes"]) == (2**16, 300 * EVENT_BYTES)
        assert stacks["bytes"] <= stacks["max_bytes"]
        assert device["ring_bytes"] <= device["max_ring_bytes"]
        assert device["live_table_bytes"] <= device["max_live_table_bytes"]
    # AND the stacks without room are counted, while their events are recorded
    assert stacks["dropped"] > 0
    assert without_stack > 0
    assert (device["recorded"], device["held"], device["overwritten"]) == (500, 300, 200)
    assert device["live_block_bytes"] == sum(block(tensor)[1] for tensor in kept)
