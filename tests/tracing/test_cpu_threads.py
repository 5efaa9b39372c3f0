"""Is a recording right, and bounded, while threads allocate?"""

import random
from types import FunctionType

import pytest
import torch
import viewers
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
