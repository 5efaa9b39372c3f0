"""Check that the state and the trace of a snapshot agree, even if threads allocate during the cut.

The trace of every snapshot is replayed from the state of the previous one. The first previous
snapshot is taken while no thread allocates. The result must equal the snapshot's segments.
"""

import gc
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import simulated
import torch
from accelerator.extension import Churn, Extension
from amount import amount
from thread_failures import repeated

from pytracer import Tracer, expandable_segments
from pytracer.owners.read import OwnersNow
from pytracer.owners.registry import Registry

RING = 30_000  # so large that even a slow machine does not overwrite it between two cuts
CUTS = amount(20, 50)  # in each test that takes many
PORTIONS, PORTION = 100, 20  # of pairs that each C++ thread is allowed, little by little, in a cut
PAGE = 2 << 20  # the unit of expandable segments

Frames = tuple[tuple[str, str, int], ...]
Entry = dict[str, Any]


@pytest.fixture(autouse=True)
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at no Python objects, which would take longer than a burst: no cut would be in one."""
    monkeypatch.setattr(Registry, "search", lambda _: None)
    monkeypatch.setattr(OwnersNow, "_hold", lambda _: None)


@pytest.fixture
def devices(device: ModuleType) -> Iterator[list[int]]:
    """Return up to two devices, empty except for memory that other tests hold."""
    gc.collect()
    device.empty_cache()
    if simulated.active():
        simulated.set_pending_queries(1000)  # each request of the C++ threads asks
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # or a burst would end before the cutting thread gets the GIL
    yield list(range(min(2, device.device_count())))
    sys.setswitchinterval(interval)
    if simulated.active():
        simulated.set_pending_queries(0)
    device.synchronize()
    device.empty_cache()


def frames_of(entry: Entry) -> Frames:
    return tuple((frame["filename"], frame["name"], frame["line"]) for frame in entry["frames"])


# --- the replay -----------------------------------------------------------------------------------


@dataclass
class Block:
    size: int
    frames: Frames
    pending: bool = False


@dataclass
class State:
    """The blocks, segments and pages of a device."""

    blocks: dict[int, Block] = field(default_factory=dict)  # the active blocks, by address
    segments: dict[int, int] = field(default_factory=dict)  # sizes by address
    pages: set[int] = field(default_factory=set)  # pages of expandable segments

    @classmethod
    def from_segments(cls, snapshot: dict[str, Any], device: int) -> "State":
        """Return the state that a snapshot's segments show."""
        state = cls()
        for segment in snapshot["segments"]:
            if segment["device"] != device:
                continue
            address, end = segment["address"], segment["address"] + segment["total_size"]
            if segment["is_expandable"]:
                state.pages |= set(range(address // PAGE, end // PAGE))
            else:
                state.segments[address] = segment["total_size"]
            for block in segment["blocks"]:
                assert block["address"] == address
                address += block["size"]
                if block["state"] == "inactive":
                    assert block["frames"] == []
                    continue
                pending = block["state"] == "active_pending_free"
                size = block["requested_size"]
                assert size <= block["size"]
                state.blocks[block["address"]] = Block(size, frames_of(block), pending)
            assert address == end
        return state


def device_metadata(snapshot: dict[str, Any], device: int) -> Entry:
    devices = snapshot["pytracer"]["devices"]
    (metadata,) = (entry for entry in devices if entry["index"] == device)
    return metadata


@dataclass
class Replay:
    """The replayed state of a device."""

    device: int
    state: State
    recorded: int
    last: Entry | None  # the last event of the last snapshot
    cpp_allocations: int = 0  # allocations without frames
    markers: int = 0

    @classmethod
    def start(cls, snapshot: dict[str, Any], device: int) -> "Replay":
        """Start with the state of a snapshot that was taken while no thread allocated."""
        recorded = device_metadata(snapshot, device)["recorded"]
        last = next(reversed(snapshot["device_traces"][device]), None)
        return cls(device, State.from_segments(snapshot, device), recorded, last)

    def check(self, snapshot: dict[str, Any]) -> None:
        """Replay the new events of a snapshot, and compare the result with its segments."""
        counts = device_metadata(snapshot, self.device)
        trace = snapshot["device_traces"][self.device]
        new = counts["recorded"] - self.recorded
        held = counts["recorded"] - counts["overwritten"]
        assert 0 < new <= held - (self.last is not None), "the ring was lapped"
        assert (counts["unknown_frees"], counts["live_dropped"]) == (0, 0)
        last = self._last_known(trace)
        # The ring has one event for both entries of a free that completes at once.
        assert new <= len(trace) - (last + 1) <= 2 * new
        for event in trace[last + 1 :]:
            self.apply(event)
        self.recorded += new
        self.last = trace[-1]
        assert self.state == State.from_segments(snapshot, self.device)

    def _last_known(self, trace: list[Entry]) -> int:
        """Return the index of the last event of the last snapshot, before its marker; -1: none."""
        if self.last is None:
            assert trace[0]["action"] == "snapshot"
            return -1
        known = {key: value for key, value in self.last.items() if key not in ("time_us", "frames")}
        time_us = self.last["time_us"]
        places = [
            i
            for i, (event, following) in enumerate(itertools.pairwise(trace))
            if following["action"] == "snapshot" and known.items() <= event.items()
        ]
        return min(places, key=lambda i: abs(trace[i]["time_us"] - time_us))

    def apply(self, event: Entry) -> None:
        state = self.state
        address, size = event.get("addr", 0), event["size"]
        match event["action"]:
            case "alloc":
                assert address not in state.blocks
                state.blocks[address] = Block(size, frames_of(event))
                self.cpp_allocations += not event["frames"]
            case "free_requested":
                block = state.blocks[address]
                assert (block.size, block.pending) == (size, False)
                block.pending = True
            case "free_completed":
                block = state.blocks.pop(address)
                assert (block.size, block.pending) == (size, True)
            case "segment_alloc":
                assert address not in state.segments
                state.segments[address] = size
            case "segment_free":
                assert state.segments.pop(address) == size
            case "segment_map":
                pages = set(range(address // PAGE, (address + size) // PAGE))
                assert not pages & state.pages
                state.pages |= pages
            case "segment_unmap":
                pages = set(range(address // PAGE, (address + size) // PAGE))
                assert pages <= state.pages
                state.pages -= pages
            case "snapshot":
                self.markers += 1
            case unknown:
                raise AssertionError(unknown)


# --- the threads ----------------------------------------------------------------------------------


class TensorThread:
    """Allocates and frees tensors and raw memory on one device; some are used on another stream."""

    def __init__(self, backend: str, index: int, seed: int) -> None:
        self._device, self._where = getattr(torch, backend), f"{backend}:{index}"
        self._index, self._random = index, random.Random(seed)
        self._stream = self._device.Stream(device=self._where)
        self._held: list[torch.Tensor | None] = [None] * 24

    def __call__(self) -> None:
        for _ in range(5):
            size = self._random.randrange(1, 1 << self._random.choice((9, 12, 16, 20, 23)))
            place = self._random.randrange(len(self._held))
            tensor = torch.empty(size, dtype=torch.uint8, device=self._where)
            if size % 3 == 0:
                tensor.record_stream(self._stream)
            self._held[place] = tensor
        address = self._device.caching_allocator_alloc(size, self._index)
        self._device.caching_allocator_delete(address)
        if self._random.random() < 0.01:
            self._device.empty_cache()
        time.sleep(0.002)

    def end(self) -> None:
        self._held.clear()


@dataclass
class AllocatingThreads:
    """Threads that allocate on all devices, and counts of the cuts that interrupted them."""

    backend: str
    devices: list[int]
    extension: Extension
    interrupted: int = 0
    pending: int = 0

    def cuts(self, tracer: Tracer, count: int, *others: Callable[[], None]) -> list[Replay]:
        """Take and check snapshots while the threads allocate; return the states at the end."""
        before = tracer.snapshot()
        replays = [Replay.start(before, index) for index in self.devices]
        tensors = [TensorThread(self.backend, i, seed) for seed in (1, 2) for i in self.devices]
        churns = [
            Churn(self.extension, f"{self.backend}:{index}", sizes, held=20)
            for index in self.devices
            for sizes in ((1, 4 << 20), (100, 40_000))
        ]
        released = 0
        with repeated(*tensors, *others):
            for _ in range(count):
                before = released
                with allowed_in_portions(churns) as portions:
                    snapshot = tracer.snapshot()
                released += 2 * PORTION * portions[0]
                for churn in churns:
                    churn.finish()
                for replay in replays:
                    replay.check(snapshot)
                    self.interrupted += before < replay.cpp_allocations < released
                    self.pending += any(block.pending for block in replay.state.blocks.values())
        for churn in churns:
            churn.end()
        for tensor in tensors:
            tensor.end()
        return replays


@contextmanager
def allowed_in_portions(churns: list[Churn]) -> Iterator[list[int]]:
    """Let C++ threads allocate in the body; yield a list of how many portions each got."""
    portions, is_over = [0], threading.Event()

    def allow() -> None:
        while portions[0] < PORTIONS and not is_over.wait(0.0003):
            for churn in churns:
                churn.allow(PORTION)
            portions[0] += 1

    thread = threading.Thread(target=allow)
    thread.start()
    while not portions[0]:
        time.sleep(0.0003)
    yield portions
    is_over.set()
    thread.join()


@pytest.mark.parametrize("expandable", [False, True], ids=["", "expandable"])
def test_every_cut_is_consistent(
    backend: str, device: ModuleType, devices: list[int], extension: Extension, expandable: bool
) -> None:
    # WHEN snapshots are taken while threads allocate on all devices, THEN each is consistent
    allocating = AllocatingThreads(backend, devices, extension)
    with (
        expandable_segments(expandable),
        Tracer(device=backend, trace_alloc_max_entries=RING) as tracer,
    ):
        before = tracer.snapshot()
        replays = allocating.cuts(tracer, CUTS)
        device.synchronize()
        device.empty_cache()
        last = tracer.snapshot()
    for replay in replays:
        # AND after all blocks are freed, the state is the one before
        replay.check(last)
        assert replay.state == State.from_segments(before, replay.device)
        assert replay.markers == CUTS + 1
    # AND some cuts interrupted allocating threads, and found blocks with a pending free
    assert allocating.interrupted >= 3
    if simulated.active():
        assert allocating.pending > CUTS / 10
    cuts = CUTS * len(devices)
    print(
        f"{cuts} cuts: {allocating.interrupted} in a burst, {allocating.pending} with pending frees"
    )


def test_torchs_own_snapshots_do_not_interfere(
    backend: str, device: ModuleType, devices: list[int], extension: Extension
) -> None:
    # GIVEN a thread that takes torch's own snapshots all the time
    torch_snapshots = [0]

    def take() -> None:
        device.memory._snapshot() if torch_snapshots[0] % 2 else device.memory_snapshot()
        torch_snapshots[0] += 1
        time.sleep(0.001)

    # WHEN pytracer takes snapshots, THEN each is consistent
    with Tracer(device=backend, trace_alloc_max_entries=RING) as tracer:
        allocating = AllocatingThreads(backend, devices, extension)
        replays = allocating.cuts(tracer, CUTS // 3, take)
        last = tracer.snapshot()
    # AND both kinds of markers are in the traces of all devices
    assert torch_snapshots[0] > 10
    for replay in replays:
        replay.check(last)
        assert replay.markers == CUTS // 3 + 1 + torch_snapshots[0]
