"""Tests of tracers around real torch code, on torch's CPU allocator."""

import contextlib
import gc
import io
import pickle
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
import viewers
from amount import amount
from core_events import Frames, chain
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.cuda import _memory_viz

from pytracer import ACTIONS, Tracer, annotate
from pytracer.tracing import process

Block = tuple[int, int]  # address, size in bytes
EVENT_BYTES = 48
BYTE = torch.uint8


pytestmark = pytest.mark.usefixtures("no_collector")


class Event(NamedTuple):
    """A row of `events()`."""

    action: str
    address: int
    size: int
    frames: Frames

    @property
    def block(self) -> Block:
        return self.address, self.size


def frames_of(listed: list[dict[str, Any]]) -> Frames:
    return [(frame["filename"], frame["name"], frame["line"]) for frame in listed]


def events_of(tracer: Tracer) -> list[Event]:
    return [
        Event(
            ACTIONS[row["action"]],
            int(row["address"]),
            int(row["size_bytes"]),
            frames_of(tracer.frames(int(row["stack"]))),
        )
        for row in tracer.events()
    ]


def blocks_of(snapshot: dict[str, Any]) -> dict[Block, Frames]:
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return {(block["address"], block["size"]): frames_of(block["frames"]) for block in blocks}


def block(tensor: Tensor) -> Block:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def counts(tracer: Tracer) -> dict[str, int]:
    (device,) = tracer.stats()["devices"]
    counted: dict[str, int] = device
    return counted


# --- what is recorded -----------------------------------------------------------------------------


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
def test_contexts(context: str | None) -> None:
    # GIVEN a block that is freed and one that stays, each allocated with its own stack
    with Tracer(context=context) as tracer:
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


# --- tracers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("7"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_in_the_body(tmp_path: Path, error: BaseException) -> None:
    # GIVEN a tracer with an output
    path = tmp_path / "snapshot.pickle"
    kept = []

    def body() -> None:
        with Tracer(path):
            kept.append(torch.empty(321))
            raise error

    # WHEN the body raises
    with pytest.raises(type(error)) as raised:
        body()
    # THEN the same exception is raised, and the snapshot is written
    assert raised.value is error
    assert blocks_of(pickle.loads(path.read_bytes())).keys() == {block(kept[0])}


def test_nested_tracers() -> None:
    # GIVEN nested tracers of different depth and context
    with Tracer(stack_depth=2) as outer:
        early = torch.empty(100)
        with (
            Tracer(context=None, trace_alloc_max_entries=2) as inner,
            Tracer(stack_depth=30) as deepest,
        ):
            middle = [torch.empty(n) for n in (200, 300, 400)]
        late = torch.empty(500)
    # THEN each tracer has the events of its own time, with its own bound, depth and context
    expected = [block(tensor) for tensor in (early, *middle, late)]
    assert [event.block for event in events_of(outer)] == expected
    assert {len(event.frames) for event in events_of(outer)} == {2}
    assert [event.block for event in events_of(inner)] == expected[2:4]
    assert {len(event.frames) for event in events_of(inner)} == {0}
    assert {len(event.frames) for event in events_of(deepest)} == {30}
    assert counts(inner)["overwritten"] == 1
    # AND each has the blocks alive at its own end
    assert blocks_of(outer.snapshot()).keys() == set(expected)
    assert blocks_of(inner.snapshot()).keys() == set(expected[:4])
    assert {len(frames) for frames in blocks_of(outer.snapshot()).values()} == {2}
    assert {len(frames) for frames in blocks_of(inner.snapshot()).values()} == {0}


def test_concurrent_tracers() -> None:
    # GIVEN threads that use a tracer at the same time, again and again
    barrier = threading.Barrier(4, timeout=600)
    problems: list[object] = []

    def work(number: int) -> None:
        for turn in range(30):
            barrier.wait()
            with Tracer(trace_alloc_max_entries=1000 + number) as tracer:
                mine = [torch.empty(64 * n + number + 1, dtype=BYTE) for n in range(turn)]
                expected = [("alloc", block(tensor)) for tensor in mine]
                expected += [("free_completed", where) for _, where in expected]
                while mine:
                    del mine[0]
            own = [e for e in events_of(tracer) if e.size % 64 == number + 1]
            if [(event.action, event.block) for event in own] != expected:
                problems.append((number, turn, own, expected))
            viewers.check_snapshot(tracer.snapshot())

    run_together([lambda number=number: work(number) for number in range(4)])
    # THEN each tracer recorded its own thread's events
    assert problems == []


def test_a_tracer_started_again() -> None:
    # GIVEN a tracer that has stopped while some of its blocks were alive
    tracer = Tracer().start()
    kept, dropped = torch.empty(100), torch.empty(200)
    tracer.stop()
    stopped = blocks_of(tracer.snapshot()).keys()
    assert stopped == {block(kept), block(dropped)}
    # WHEN one of the blocks is freed after the stop, and the tracer starts again
    del dropped
    tracer.start()
    new = torch.empty(300)
    expected = block(new)
    del kept
    tracer.stop()
    # THEN the tracer has only the events of the new recording
    assert [event.block for event in events_of(tracer)] == [expected]
    assert blocks_of(tracer.snapshot()).keys() == {expected}
    assert counts(tracer)["unknown_frees"] == 1


@pytest.mark.parametrize("output", ["out", "x.pickle"])
def test_recordings_of_one_output_have_a_file_each(tmp_path: Path, output: str) -> None:
    # GIVEN a tracer that is used twice, and another tracer with the same output
    first, second = (Tracer(tmp_path / output, device="cpu") for _ in range(2))
    for number, tracer in enumerate((first, first, second)):
        with tracer, tracer:  # the end of the outer statement writes the same again
            kept = torch.empty(1000 + number, dtype=BYTE)
            del kept
    # THEN each recording has its own file
    paths = [path for path in sorted(tmp_path.rglob("*.pickle")) if path.is_file()]
    sizes = [pickle.loads(path.read_bytes())["device_traces"][0][0]["size"] for path in paths]
    assert sorted(sizes) == [1000, 1001, 1002]
    if output == "x.pickle":
        assert [path.name for path in paths] == ["x.pickle", "x_2.pickle", "x_3.pickle"]
        assert sizes == [1000, 1001, 1002]


def test_a_restarted_tracer_has_the_blocks_that_another_recorded() -> None:
    # GIVEN two tracers that record
    with Tracer() as second:
        tracer = Tracer().start()
        kept, dropped = torch.empty(100), torch.empty(200)
        tracer.stop()
        # WHEN one of them pauses, and blocks are freed and allocated while only the other records
        del dropped
        new = torch.empty(300)
        tracer.start()
        tracer.stop()
    # THEN the paused tracer has the live blocks after its restart, and no events
    assert events_of(tracer) == []
    assert blocks_of(tracer.snapshot()).keys() == {block(kept), block(new)}
    assert len(events_of(second)) == 4


def test_clear() -> None:
    # GIVEN two tracers with events; the ring of one has lapped
    with Tracer() as second, Tracer(trace_alloc_max_entries=2) as tracer:
        kept, allocated = torch.empty(100), chain(sys._getframe())
        for _ in range(3):
            torch.empty(200)
        # WHEN one is cleared
        tracer.clear()
        # THEN its events and counts are cleared; live blocks and the other tracer's events are kept
        assert events_of(tracer) == []
        assert (counts(tracer)["recorded"], counts(tracer)["overwritten"]) == (0, 0)
        assert blocks_of(tracer.snapshot()) == {block(kept): allocated[:32]}
        assert len(events_of(second)) == 7
        # AND the recording continues
        where = block(kept)
        del kept
    assert [(event.action, event.block) for event in events_of(tracer)] == [
        ("free_completed", where)
    ]


def test_a_tracer_that_never_started(tmp_path: Path) -> None:
    tracer = Tracer()
    tracer.stop()
    tracer.clear()
    assert (len(tracer.events()), tracer.frames(0), tracer.stats()["devices"]) == (0, [], [])
    tracer.dump(tmp_path / "snapshot.pickle")
    viewers.check_snapshot(pickle.loads((tmp_path / "snapshot.pickle").read_bytes()))


STEPS: dict[str, Any] = {"steps": [1, 2], "discrete": True}


@pytest.mark.parametrize(
    ("uses", "options"),
    [
        (0, {}),
        (1, {}),
        (2, {"trigger_file": "trigger"}),
        (2, STEPS),
        (1, {**STEPS, "step_from": "optimizer"}),
        (1, {**STEPS, "step_from": "framework"}),
    ],
)
def test_a_dropped_tracer_is_freed_at_once(
    tmp_path: Path, uses: int, options: dict[str, Any]
) -> None:
    # GIVEN a program without the collection of reference cycles
    with without_garbage_collector():
        tracer = Tracer(tmp_path, device="cpu", **options)
        # WHEN a tracer was used, or never started, and the program drops its reference
        for _ in range(uses):
            with tracer, annotate("rollout"):
                torch.empty(10)
                tracer.step()
        assert (repr(tracer), tracer.stats(), tracer.snapshot(), tracer.events()) is not None
        tracer.dump(tmp_path / "x.pickle")
        parts = (tracer, tracer._recording, tracer._writer, tracer._step_recording)
        references = [*map(weakref.ref, parts)]
        del tracer, parts
        for thread in threading.enumerate():
            if thread.name == "pytracer steps":  # a timer, which was cancelled
                thread.join()
            del thread
        # THEN the tracer is freed with all its objects
        assert [reference() for reference in references] == [None] * 4


def test_a_dropped_tracer_waits_for_no_device() -> None:
    with without_garbage_collector():
        before = len(process.waiting)
        tracer = Tracer(device="npu" if torch.cuda.is_available() else "cuda").start()
        assert len(process.waiting) == before + 1
        del tracer
        assert len(process.waiting) == before


def test_a_tracer_keeps_no_object_of_the_caller() -> None:
    class Names(list[str]):
        """A list that supports weak references."""

    with without_garbage_collector():
        names = Names(["cpu"])
        reference = weakref.ref(names)
        tracer = Tracer(device=names)
        del names
        assert reference() is None
    assert tracer._options.given == {"device"}


@contextlib.contextmanager
def without_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# --- under load -----------------------------------------------------------------------------------


def run_together(works: list[Callable[[], None]]) -> None:
    """Run each function on its own thread; raise here what one of them raises."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


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
            for turn in range(amount(1000, 5000)):
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


# --- a training loop, and its snapshot ------------------------------------------------------------


class Model(nn.Module):
    """A small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scores(self.layer(self.embedding(tokens)))


@dataclass
class Training:
    """A traced training, with its model and its file."""

    path: Path
    tracer: Tracer
    model: Model
    optimizer: torch.optim.Optimizer

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    path = tmp_path_factory.mktemp("training") / "snapshot.pickle"
    with Tracer(path, metadata={"run": 7, "rates": [0.1, 0.2]}) as tracer:
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(8):
            tokens = torch.randint(50, (4, 17))
            scores = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Training(path, tracer, model, optimizer)


def test_viewers_accept_a_training(training: Training) -> None:
    pickled = viewers.check_opcodes(training.data)
    viewers.check_snapshot(pickled.root)
    viewers.check_snapshot(training.tracer.snapshot())


def test_every_part_is_written_once(training: Training) -> None:
    assert viewers.check_opcodes(training.data).repeated() == []


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("stats", (), "total_allocated: "),
        ("trace", (), "Device 0 ----------------\n"),
        ("trace_plot", (), "Active Memory Timeline"),
        ("segment_plot", (), "Allocator State History"),
        ("memory", (), "test_cpu_recording.py:"),
        ("segments", (), "test_cpu_recording.py:"),
    ],
)
def test_torchs_viewer_opens_it(
    training: Training, tmp_path: Path, command: str, options: tuple[str, ...], expected: str
) -> None:
    output = None if command in {"stats", "trace"} else tmp_path / "out"
    text = viewers.run_memory_viz(training.path, command, *options, output=output)
    assert expected in text


def test_segsum(training: Training) -> None:
    # GIVEN the blocks of the training
    snapshot = training.tracer.snapshot()
    held = sum(segment["total_size"] for segment in snapshot["segments"])
    # WHEN torch sums up the segments, THEN all of their memory is in use
    lines = _memory_viz.segsum(snapshot).splitlines()
    assert f"total_reserved: {_memory_viz.Bytes(held)}" in lines
    assert f"total_allocated: {_memory_viz.Bytes(held)}" in lines


def test_the_tensors_of_a_training_are_in_the_snapshot(training: Training) -> None:
    # GIVEN parameters, gradients and the optimizer's state
    parameters = list(training.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    states = [
        value
        for state in training.optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    # WHEN their blocks are looked up in the snapshot
    blocks = blocks_of(training.tracer.snapshot())
    # THEN each is found, with a stack of the training
    assert len(parameters) == len(gradients) == len(states) / 3 == 15
    for tensor in (*parameters, *gradients, *states):
        assert ("training", __file__) in [
            (name, filename) for filename, name, _ in blocks[block(tensor)]
        ]


def test_the_file_is_the_dict(training: Training) -> None:
    # GIVEN the file, and a dictionary that was made later
    written, snapshot = pickle.loads(training.data), training.tracer.snapshot()
    # WHEN they are compared, THEN only their times differ
    assert written["pytracer"].pop("written_ns") < snapshot["pytracer"].pop("written_ns")
    assert written == snapshot
    # AND the metadata describes the recording
    about = snapshot["pytracer"]
    assert about["metadata"] == {"run": 7, "rates": [0.1, 0.2]}
    assert about["torch"] == torch.__version__
    assert (about["context"], about["stack_depth"]) == ("all", 32)
    assert about["devices"][0]["recorded"] == counts(training.tracer)["recorded"]


def test_a_pickled_dict_is_as_small_as_the_file(training: Training) -> None:
    # GIVEN the dictionary of a snapshot
    snapshot = training.tracer.snapshot()
    holders = [*snapshot["segments"], *snapshot["device_traces"][0]]
    # WHEN it is pickled as torch pickles its own
    size = len(pickle.dumps(snapshot, protocol=4))
    # THEN its size is close to the file's, because equal lists of frames are one list
    lists = {id(holder["frames"]): holder["frames"] for holder in holders}
    distinct = {tuple(frames_of(frames)) for frames in lists.values()}
    assert len(distinct) <= len(lists) < len(holders) / 10
    assert 0.5 < size / len(training.data) < 2
