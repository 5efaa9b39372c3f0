"""Test the recording of torch's pinned host memory, the device `host`."""

import ast
import gc
import inspect
import pickle
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import simulated
import torch
import viewed_pickles
import viewers
from accelerator.parity import CLOSE_US, require_same
from contexts import with_context
from processes import environment, run
from thread_failures import repeated

from pytracer import Tracer, show
from pytracer.analysis.explanation import explain
from pytracer.analysis.history import replay
from pytracer.analysis.report import stats
from pytracer.reading.reader import load

Snapshot = dict[str, Any]
EVENT = ("action", "addr", "stream", "pool_id", "compile_context", "user_metadata")


@pytest.fixture(autouse=True)
def only_cuda(backend: str, device: ModuleType) -> Iterator[None]:
    """Leave the allocator of pinned memory, and the device, as they were."""
    if backend != "cuda":
        pytest.skip("the pinned memory of an NPU is not recorded")
    gc.collect()
    torch._C._host_emptyCache()
    yield
    if simulated.active():
        simulated.set_busy(False)
    gc.collect()
    device.synchronize()
    torch._C._host_emptyCache()


def tells_state(device: ModuleType) -> bool:
    """Return whether torch tells the state of pinned memory, as it does since 2.15."""
    record = device.memory._record_memory_history
    return "record_pinned_host_memory" in inspect.signature(record).parameters


@pytest.fixture
def records(device: ModuleType) -> Iterator[Callable[..., None]]:
    """Return the function that switches torch's own recorder of pinned memory on."""
    if not tells_state(device):
        pytest.skip("this torch does not record pinned memory")
    record = device.memory._record_memory_history
    yield lambda **options: record(
        record_pinned_host_memory=True, stacks="python", clear_history=True, **options
    )
    record(None)


class PinnedWork:
    """A random activity of pinned memory."""

    def __init__(self, seed: int) -> None:
        """Hold nothing yet."""
        self._random = random.Random(seed)
        self._held: list[torch.Tensor] = []
        self._side = torch.cuda.Stream()

    def run(self, operations: int) -> None:
        for _ in range(operations):
            self._random.choice([self.allocate] * 6 + [self.free] * 5 + [self.copy] * 3)()
            if self._random.random() < 0.02:
                torch._C._host_emptyCache()
            if self._random.random() < 0.1 and simulated.active():
                simulated.set_busy(self._random.random() < 0.5)

    def allocate(self) -> None:
        size = self._random.choice([1, 100, 5000, 2**20, 3 * 2**20])
        self._held.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))

    def free(self) -> None:
        if self._held:
            del self._held[self._random.randrange(len(self._held))]

    def copy(self) -> None:
        """Use a block on one stream or on two, so that its free may be delayed."""
        if self._held:
            block = self._random.choice(self._held)
            block.to("cuda", non_blocking=True)
            with torch.cuda.stream(self._side):
                if self._random.random() < 0.3:
                    block.to("cuda", non_blocking=True)


def states(segments: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return what torch and pytracer must agree on, by address; torch has no requested sizes."""
    found = {}
    for segment in segments:
        own = ("frames", "blocks", "requested_size")
        plain = {key: value for key, value in segment.items() if key not in own}
        (block,) = segment["blocks"]
        keys = ("address", "size", "state")
        found[segment["address"]] = plain | {"block": {key: block[key] for key in keys}}
    return found


@pytest.mark.parametrize("context", ["all", "alloc", "state"])
def test_the_record_is_that_of_torchs_recorder(
    device: ModuleType, records: Callable[..., None], context: str
) -> None:
    # GIVEN a hook, and blocks from before the recording: in use, cached, and in use on a stream
    Tracer(device="cuda", pinned_memory=True).start().stop()
    work = PinnedWork(7)
    work.run(60)
    # WHEN torch's recorder and pytracer's record the same activity
    tracer = Tracer(device="cuda", pinned_memory=True, stack_depth=64)
    with_context(tracer, context).start()
    records(context=context)
    before_us = time.time_ns() // 1000
    work.run(1500)
    traced, native = tracer.snapshot(), device.memory._snapshot()
    written_us = time.time_ns() // 1000
    tracer.stop()
    # THEN they have the same events, in the same order, with the same sizes and stacks
    actions = set()
    strangers = {event["addr"] for event in native["host_traces"]}
    for number, (theirs, ours) in enumerate(
        zip(native["host_traces"], traced["host_traces"], strict=False)
    ):
        where = f"event {number} ({theirs['action']})"
        for key in EVENT:
            require_same(f"{where}, {key}", theirs[key], ours[key])
        size = ours["size"]  # torch rounds up to powers of two
        require_same(f"{where}, size", theirs["size"], 1 << (size - 1).bit_length())
        assert before_us - CLOSE_US < ours["time_us"] < written_us + CLOSE_US
        if theirs["action"] == "alloc":
            strangers.discard(theirs["addr"])
        # torch gives the release of a segment no stack, and a free that empty_cache() completed the
        # stack of the allocation.
        by_allocator = theirs["action"] in ("segment_free", "free_completed")
        if context == "all" and not by_allocator and theirs["addr"] not in strangers:
            require_same(f"{where}, frames", theirs.get("frames", []), ours["frames"])
        actions.add(theirs["action"])
    require_same("events", len(native["host_traces"]), len(traced["host_traces"]))
    assert actions == {
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free"
    }  # fmt: skip
    # AND the same segments
    require_same("segments", states(native["host_segments"]), states(traced["host_segments"]))


def test_a_file(device: ModuleType, tmp_path: Path) -> None:
    # GIVEN a recording of a program that pins memory
    path = tmp_path / "x.pickle"
    with Tracer(path, device="cuda", pinned_memory=True) as tracer:
        for _ in range(3):
            loader = torch.utils.data.DataLoader(torch.zeros(64, 4), batch_size=16, pin_memory=True)
            batches = [batch.to("cuda", non_blocking=True) for batch in loader]
        kept = torch.empty(5000, pin_memory=True)
        tracer.step()
    held = device.host_memory_stats()["active_bytes.current"]
    # WHEN the file is read
    content = path.read_bytes()
    viewed_pickles.check_opcodes(content)
    written = pickle.loads(content)
    viewers.check_snapshot(written)
    # THEN torch's viewers accept the lists of pinned memory too
    segments = [{**segment, "device": 0} for segment in written["host_segments"]]
    traces = [written["host_traces"]]
    viewers.check_snapshot({**written, "segments": segments, "device_traces": traces})
    snapshot = load(path)
    host = snapshot.host_device
    # AND pinned memory is the file's last device, with what torch counted
    assert host == len(snapshot.traces) - 1
    assert snapshot.device_name(host) == "host"
    history = replay(snapshot, host)
    assert history.exact_from == 0
    allocated = int(history.usage.allocated_bytes[-1])
    if tells_state(device):
        assert allocated == held
    else:  # a free counts as completed when it is requested
        assert kept.nbytes <= allocated <= held
    # AND a report has no retries and no categories
    found = {each.name: each for each in stats(snapshot).devices}["host"]
    assert found.counts.retries is None
    assert found.held_by("category", "end") is None
    assert batches


def test_without_the_option_there_is_no_host(device: ModuleType) -> None:
    with Tracer(device="cuda", pinned_memory=False) as tracer:
        block = torch.empty(5000, pin_memory=True)
        snapshot = tracer.snapshot()
    assert block.is_pinned()
    assert not {"host_segments", "host_traces"} & snapshot.keys()


def test_threads_share_the_allocator(device: ModuleType) -> None:
    # GIVEN threads that pin and free memory, and one that takes snapshots
    def pin(chosen: random.Random, held: list[torch.Tensor]) -> None:
        held.append(torch.empty(chosen.choice([10, 5000, 2**20]), pin_memory=True))
        if chosen.random() < 0.6 or len(held) > 100:
            del held[chosen.randrange(len(held))]
        time.sleep(0.002)

    snapshots = []
    with Tracer(device="cuda", pinned_memory=True, trace_alloc_max_entries=500_000) as tracer:
        with repeated(*(partial(pin, random.Random(seed), []) for seed in range(4))):
            for _ in range(10):
                snapshots.append(pickle.dumps(tracer.snapshot()))
                torch._C._host_emptyCache()
        gc.collect()
        snapshots.append(pickle.dumps(tracer.snapshot()))
    # THEN the state of every snapshot is where its trace leads
    for content in snapshots:
        snapshot = load(content)
        assert snapshot.host_device is not None
        assert replay(snapshot, snapshot.host_device).exact_from == 0


def pin(*mib: int) -> list[torch.Tensor]:
    return [torch.empty(each << 20, dtype=torch.uint8, pin_memory=True) for each in mib]


def work() -> None:
    for _ in range(2000):
        torch.empty(1000, device="cuda")


def burst() -> list[torch.Tensor]:
    pin(*[64] * 8)
    work()
    return pin(64)


def replaced() -> list[torch.Tensor]:
    small = pin(300)
    large = pin(600)
    del small
    return large


def reused() -> list[torch.Tensor]:
    for _ in range(20):
        held = pin(*[64] * 8)
        work()
    return held


@pytest.mark.parametrize(
    ("program", "figures"),
    {
        lambda: pin(70, 70, 70, 70): (512, 280, 232, 0, 64, 280),
        burst: (512, 64, 0, 448, 32, 64),
        replaced: (1536, 600, 424, 512, 256, 600),
        # AND nothing is said of programs that request powers of two, and what they free once more
        lambda: pin(256, 512): None,
        reused: None,
    }.items(),
    ids=["rounding", "burst", "replaced", "exact", "reused"],
)
def test_what_was_taken_and_requested(tmp_path: Path, program: Any, figures: Any) -> None:
    # WHEN a program pins memory, by default options
    with Tracer(tmp_path / "x.pickle", device="cuda"):
        held = program()
        work()
    # THEN the answer has what torch took in MiB, and what it would take with the advised setting
    found = explain(load(tmp_path / "x.pickle"))[0].pinned
    shown = " ".join(str(show(tmp_path)).split())
    assert ("pinned memory" in shown) == bool(held and figures) == (found is not None)
    if found is not None:
        *sizes, site, limit, limited = vars(found).values()
        assert [*(each >> 20 for each in sizes), limit, limited >> 20] == [*figures]
        assert ["_host_emptyCache()", f"_size_mb:{limit}"][found.rounding_bytes > 0] in shown
        assert site.name in ("pin", "<listcomp>")


OLDER = """
import torch, pytracer
torch.cuda.init()
kept, freed = (torch.empty(size, pin_memory=True) for size in (5000, 2**20))
tracer = pytracer.Tracer(device="cuda", pinned_memory=True).start()
del freed
snapshot = tracer.snapshot()
print({0} | {event["action"] for event in snapshot.get("host_traces", [])})
segments = snapshot.get("host_segments", [])
print(sorted((each["total_size"], each["blocks"][0]["state"]) for each in segments))
"""


def test_blocks_that_are_older_than_the_hook(device: ModuleType, tmp_path: Path) -> None:
    done = run(OLDER, "cuda", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    actions, segments = map(ast.literal_eval, done.stdout.splitlines())
    if tells_state(device):
        # THEN a torch that tells the state of its segments tells of the free
        assert actions == {0, "free_requested", "free_completed"}
        assert segments == [(2**15, "active_allocated"), (2**22, "inactive")]
    else:
        assert actions == {0}
        assert segments == []


LATER = """
import torch, pytracer
tracer = pytracer.Tracer(pinned_memory=True).start()
kept = torch.empty(1000, device="cuda"), torch.empty(1000, pin_memory=True)
print(len(tracer.snapshot()["host_traces"]) > 0)
"""


def test_pinned_memory_that_is_recorded_later_is_not_said_to_be_missing(tmp_path: Path) -> None:
    # GIVEN a device that can only be recorded when torch initialises it
    done = run(LATER, "cuda", cwd=tmp_path, env=environment(SIMULATED_NVML="0"))
    # THEN its pinned memory is recorded from then on, too, and no line says anything else
    assert done.stdout.split() == ["True"], done.stderr
    assert "pinned memory is not recorded" not in done.stderr


FORK = """
import os, sys, torch, pytracer
torch.cuda.init()
tracer = pytracer.Tracer(device="cuda", pinned_memory=True).start()
held = [torch.empty(1000, pin_memory=True) for _ in range(3)]
child = os.fork()
if child == 0:
    cpu = pytracer.Tracer(device="cpu").start()
    blocks = [torch.empty(1000) for _ in range(10)]
    print(len(cpu.events()) >= 10, flush=True)
    os._exit(0)
os.waitpid(child, 0)
del held
print(len(tracer.snapshot()["host_traces"]))
"""


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    done = run(FORK, "cuda", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "12"]
