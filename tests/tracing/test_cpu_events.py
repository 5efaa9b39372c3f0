"""Which events does a program's use of CPU memory have?"""

import io
import pickle
import sys
import threading
import time
from pathlib import Path

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


def test_resize() -> None:
    with Tracer() as tracer:
        # GIVEN a tensor
        tensor = torch.empty(10)
        small = block(tensor)
        # WHEN it grows, shrinks within its storage, and its storage is resized
        tensor.resize_(1000)
        large = block(tensor)
        tensor.resize_(20)
        tensor.untyped_storage().resize_(77)
        smaller = block(tensor)
    # THEN only moved blocks are recorded: the allocation of the new block, then the free of the old
    assert [(event.action, event.block) for event in events_of(tracer)] == [
        ("alloc", small),
        ("alloc", large),
        ("free_completed", small),
        ("alloc", smaller),
        ("free_completed", large),
    ]
    assert smaller[1] == 77


def test_views_share_and_clones_do_not() -> None:
    with Tracer() as tracer:
        base = torch.zeros(10, 20)
        views = [base[1:], base.t(), base.view(-1), base.detach()]
        clone = base.t().clone(memory_format=torch.contiguous_format)
        expected = [block(base), block(clone)]
        del base, clone
        views.clear()
    assert [event.block for event in events_of(tracer) if event.action == "alloc"] == expected
    assert blocks_of(tracer.snapshot()) == {}


def test_save_and_load() -> None:
    # GIVEN a saved tensor
    file = io.BytesIO()
    with Tracer() as tracer:
        torch.save({"weight": torch.arange(1000.0)}, file)
        file.seek(0)
        # WHEN it is loaded
        loaded, here = torch.load(file)["weight"], chain(sys._getframe())
        assert loaded.sum() == 499_500
    # THEN its block is alive at the end, allocated by torch's Python code, which this line called
    frames = blocks_of(tracer.snapshot())[block(loaded)]
    outer = frames[frames.index(here[0]) :]
    assert len(outer) < len(frames)
    assert outer == here[: len(outer)]


def test_memory_of_numpy_is_not_recorded() -> None:
    with Tracer() as tracer:
        # WHEN arrays become tensors and tensors become arrays
        shared = torch.empty(500).numpy()
        tensor = torch.from_numpy(shared)
        where = block(tensor)
        again = torch.from_numpy(shared.copy())
        held = [shared, tensor]
        del shared, tensor, again
        allocated = tracer.events()
        held.clear()
    # THEN an array that shares a tensor's memory keeps the block alive; numpy's own memory is not
    # recorded
    assert len(allocated) == 1
    assert [(event.action, event.block) for event in events_of(tracer)] == [
        ("alloc", where),
        ("free_completed", where),
    ]


def test_shared_memory_is_not_recorded() -> None:
    with Tracer() as tracer:
        # WHEN a tensor moves to shared memory
        tensor = torch.full((1000,), 3.0)
        private = block(tensor)
        tensor.share_memory_()
        shared = block(tensor)
        del tensor
    # THEN the free of its first block is recorded, and the shared block is not
    assert [(event.action, event.block) for event in events_of(tracer)] == [
        ("alloc", private),
        ("free_completed", private),
    ]
    assert shared != private


def test_mapped_files_are_not_recorded(tmp_path: Path) -> None:
    # GIVEN files
    torch.save(torch.arange(5000.0), tmp_path / "saved")
    # WHEN they are mapped
    with Tracer() as tracer:
        mapped = torch.from_file(str(tmp_path / "mapped"), shared=True, size=5000)
        loaded = torch.load(tmp_path / "saved", mmap=True)
        assert mapped.fill_(1).sum() + loaded[:2].sum() == 5001
    # THEN their memory is not recorded
    assert all(event.size < 5000 for event in events_of(tracer))
    assert not {block(mapped)[0], block(loaded)[0]} & {event.address for event in events_of(tracer)}


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


@pytest.mark.parametrize("depth", [1, 2, 3, 200])
def test_stack_depth(depth: int) -> None:
    def down(levels: int) -> tuple[Tensor, Frames]:
        return down(levels - 1) if levels else (torch.empty(100), chain(sys._getframe()))

    with Tracer(stack_depth=depth) as tracer:
        _, frames = kept = down(60)
    assert events_of(tracer)[0].frames == frames[:depth]
    assert blocks_of(tracer.snapshot())[block(kept[0])] == frames[:depth]
    assert tracer.stats()["stacks"]["truncated"] == (len(frames) > depth)


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


@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
def test_contexts(context: str | None) -> None:
    # GIVEN a block that is freed and one that stays, each allocated with its own stack
    with with_context(Tracer(), context) as tracer:
        held, allocated = [torch.empty(500)], chain(sys._getframe())[:32]
        where = block(held[0])
        kept, kept_at = torch.empty(700), chain(sys._getframe())[:32]
        _, freed = held.clear(), chain(sys._getframe())[:32]
    # WHEN the events are read, THEN they have the stacks that torch's recorder would give them
    on_events: list[Frames] = {
        None: [[], [], []],
        "state": [[], [], []],
        "alloc": [allocated, kept_at, allocated],
        "all": [allocated, kept_at, freed],
    }[context]
    assert [event.frames for event in events_of(tracer)] == on_events
    snapshot = tracer.snapshot()
    viewers.check_snapshot(snapshot)
    traced = {"alloc": on_events[:2], "free_requested": on_events[2:]}
    traced |= {"segment_alloc": traced["alloc"], "segment_free": traced["free_requested"]}
    traced["free_completed"] = traced["free_requested"]
    for action, expected in traced.items():
        found = [e for e in snapshot["device_traces"][0] if e["action"] == action]
        assert [frames_of(event["frames"]) for event in found] == expected
    # AND blocks have the stack of their allocation
    assert blocks_of(snapshot) == {block(kept): [] if context is None else kept_at}
    assert where not in blocks_of(snapshot)
