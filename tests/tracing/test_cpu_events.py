"""Which events does a program's use of CPU memory have?"""

import pickle
import sys
import threading
import time

import numpy as np
import pytest
import torch
import viewers
from contexts import with_context
from core_events import Frames, chain
from cpu_events import BYTE, Event, block, blocks_of, counts, events_of, frames_of
from torch import Tensor

from pytracer import Tracer
from pytracer.analysis.history import replay
from pytracer.reading import load

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1,), BYTE), ((3,), torch.float32), ((10, 100), torch.float64), ((2**28,), BYTE)],
)
def test_an_allocation_and_its_free(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    # GIVEN a recording
    before = time.time_ns()
    with Tracer() as tracer:
        # WHEN a tensor is allocated and freed
        held, allocated = [torch.empty(shape, dtype=dtype)], chain(sys._getframe())
        where = block(held[0])
        _, freed = held.clear(), chain(sys._getframe())
    # THEN both events have its address, its size and the stack of that line
    assert events_of(tracer) == [
        Event("alloc", *where, allocated[:32]),
        Event("free_completed", *where, freed[:32]),
    ]
    # AND the other columns have the expected values
    events = tracer.events()
    millisecond = 1_000_000
    first, second = events["time_ns"].tolist()
    assert before - millisecond <= first <= second <= time.time_ns() + millisecond
    assert events["sequence"][1] == events["sequence"][0] + 1
    assert events["alloc_stack"].tolist() == [0, events["stack"][0]]
    assert set(events["device"]) == {-1}
    assert set(events["step"]) == {1}
    for field in ("stream", "phase", "pool_low", "pool_high"):
        assert set(events[field]) == {0}


def test_a_tensor_without_bytes_has_no_event() -> None:
    with Tracer() as tracer:
        torch.empty(0).resize_(0)
        torch.empty(5, 0, 7)
    assert events_of(tracer) == []


def test_blocks_alive_at_the_end() -> None:
    # GIVEN tensors, some of which are freed
    with Tracer() as tracer:
        small, small_at = torch.empty(1), chain(sys._getframe())
        large, large_at = torch.empty(300_000), chain(sys._getframe())
        torch.empty(500)
    # WHEN the others are freed after the recording
    expected = {block(small): small_at[:32], block(large): large_at[:32]}
    del small, large
    # THEN the snapshot has the blocks alive at the end, each with the stack that allocated it
    snapshot = tracer.snapshot()
    viewers.check_snapshot(snapshot)
    assert blocks_of(snapshot) == expected


def test_blocks_from_before() -> None:
    # GIVEN tensors allocated before the recording
    old, older = torch.empty(1000), torch.empty(1000)
    # WHEN one of them is freed during the recording, the other after it
    with Tracer() as tracer:
        del old
    del older
    # THEN no event is invented: the free is counted as a free of an unknown block
    assert events_of(tracer) == []
    assert tracer.snapshot()["segments"] == []
    assert counts(tracer)["unknown_frees"] == 1
    assert counts(tracer)["recorded"] == 0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_raw_allocations() -> None:
    # GIVEN tensors of oneDNN, which uses `raw_allocate` and `raw_deallocate`; one was allocated
    # before the recording
    dense = torch.randn(64, 64)
    old = dense.to_mkldnn()
    with Tracer() as tracer:
        # WHEN another is made and used, and both are freed
        opaque, allocated = dense.to_mkldnn(), chain(sys._getframe())
        assert torch.equal(opaque.to_dense(), dense)
        kept = events_of(tracer)[0]
        alive = kept.block in blocks_of(tracer.snapshot())
        del opaque, old
    # THEN its memory is recorded like any other
    assert (kept.action, kept.frames) == ("alloc", allocated[:32])
    assert kept.size >= dense.nbytes
    assert alive
    assert ("free_completed", kept.block) in [(e.action, e.block) for e in events_of(tracer)]
    assert blocks_of(tracer.snapshot()) == {}
    assert counts(tracer)["unknown_frees"] == 1


def test_frames_of_other_threads() -> None:
    # GIVEN a block that this thread allocates and another thread frees
    freed: Frames = []

    def work() -> None:
        freed[:] = (held.clear(), chain(sys._getframe()))[1]

    with Tracer() as tracer:
        held, allocated = [torch.empty(100)], chain(sys._getframe())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    # THEN each event has the stack of its own thread
    assert [event.frames for event in events_of(tracer)] == [allocated[:32], freed]
    assert (freed[0][1], freed[1][1]) == ("work", "run")


@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
def test_a_free_tells_of_an_allocation_that_the_file_lacks(context: str | None) -> None:
    # GIVEN a block of the second step whose allocation leaves the ring, and one whose does not
    with with_context(Tracer(trace_alloc_max_entries=5), context) as tracer:
        tracer.step()
        old, allocated = [torch.empty(500)], chain(sys._getframe())[:32]
        tracer.step()
        for _ in range(2):
            torch.empty(600)
        new = [torch.empty(700)]
        # WHEN both are freed
        old.clear()
        new.clear()
        torch.empty(800)
    # THEN the free of the first has the stack and the step of its allocation
    snapshot = tracer.snapshot()
    viewers.check_snapshot(snapshot)
    events = snapshot["device_traces"][0]
    [free] = [event for event in events if "allocation" in event]
    assert (free["action"], free["size"], free["allocation"]["birth_step"]) == (
        "free_requested",
        2000,
        2,
    )
    frames = free["allocation"].get("frames", [])
    assert frames_of(frames) == (allocated if context in {"alloc", "all"} else [])
    # AND so has the block in the analysis
    loaded = load(pickle.dumps(snapshot))
    blocks = replay(loaded).blocks
    [row] = np.flatnonzero(blocks.size_bytes == 2000)
    assert (blocks.alloc_event[row], blocks.birth_step[row]) == (-1, 2)
    if frames:
        assert loaded.stacks.frames(blocks.stack[row])[0].line == frames[0]["line"]


@pytest.mark.parametrize("depth", [1, 2, 3, 200])
def test_stack_depth(depth: int) -> None:
    def down(levels: int) -> tuple[Tensor, Frames]:
        return down(levels - 1) if levels else (torch.empty(100), chain(sys._getframe()))

    with Tracer(stack_depth=depth) as tracer:
        _, frames = kept = down(60)
    assert events_of(tracer)[0].frames == frames[:depth]
    assert blocks_of(tracer.snapshot())[block(kept[0])] == frames[:depth]
    assert tracer.stats()["stacks"]["truncated"] == (len(frames) > depth)
