"""`replay` of a recording agrees with `memory_stats()`, taken at moments of the same activity."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from accelerator.workload import MIB, Workload
from plain_reader import convert

from pytracer import Tracer
from pytracer.reading.history import History, replay
from pytracer.reading.snapshot import SNAPSHOT, Snapshot

EVENTS = 12_000
ROOM = 1 << 18
STATS = {
    "requested_bytes": "requested_bytes",
    "allocated_bytes": "allocated_bytes",
    "active_bytes": "active_bytes",
    "reserved_bytes": "reserved_bytes",
    "inactive_split_bytes": "inactive_split_bytes",
    "segments": "segment",
}
EXACT_ALWAYS = ("requested_bytes", "reserved_bytes", "segments")
CONFIGURATIONS = [
    # seed, options of the workload
    pytest.param(21, {}, id="segments"),
    pytest.param(22, {"expandable": "on"}, id="expandable"),
    pytest.param(23, {"expandable": "toggled"}, id="toggled"),
    pytest.param(24, {"delays": False}, id="no-delays"),
]

pytestmark = pytest.mark.usefixtures("no_collector")

Moments = list[list[dict[str, int]]]  # by device


class Watched(Workload):
    """Takes the statistics of all devices now and then, in bursts, pools and captures too.

    The place in the trace of a moment is the mark that the allocator's `snapshot()` leaves.
    """

    def __init__(self, backend: str, seed: int, device: ModuleType, **options: Any) -> None:
        self.moments: Moments = [[] for _ in range(min(2, device.device_count()))]
        self._watched = device
        self._when = random.Random(seed)
        super().__init__(backend, seed, **options)

    def _some(self, *arguments: Any) -> int:
        count = super()._some(*arguments)
        self.look(0.1)
        return count

    def _tensor(self, rng: random.Random) -> torch.Tensor:
        tensor = super()._tensor(rng)
        self.look(0.3)
        return tensor

    def look(self, chance: float = 1) -> None:
        if self._when.random() >= chance:
            return
        for device, moments in enumerate(self.moments):
            stats = self._watched.memory_stats(device)
            moments.append({name: stats[f"{key}.all.current"] for name, key in STATS.items()})
        # Not `memory_snapshot()`: that of torch 2.12 gives a reference to True away with each call.
        self._watched.memory._snapshot()


@contextmanager
def watched(backend: str, device: ModuleType, seed: int, **options: Any) -> Iterator[Watched]:
    workload = Watched(backend, seed, device, **options)
    try:
        yield workload
    finally:
        workload.close()


@contextmanager
def recorded_by_torch(device: ModuleType, entries: int = ROOM) -> Iterator[None]:
    device.memory._record_memory_history("all", context=None, max_entries=entries)
    try:
        yield
    finally:
        device.memory._record_memory_history(None)


def check(snapshot: Snapshot, moments: Moments) -> tuple[int, int]:
    """Returns how many moments were compared, and at how many of them all is exact."""
    compared = exact_moments = 0
    for device, expected in enumerate(moments):
        history = replay(snapshot, device)
        (marks,) = np.nonzero(snapshot.traces[device].action == SNAPSHOT)
        marks = marks[:-1]  # the last is that of the snapshot itself
        expected = expected[len(expected) - len(marks) :]
        assert len(marks) == len(expected) > 0
        exact = ~unsized(history)
        assert exact[history.exact_from :].all()
        for entry, stats in zip(marks.tolist(), expected, strict=True):
            found = {name: int(getattr(history.levels, name)[entry]) for name in STATS}
            if exact[entry]:
                assert found == stats, (device, entry)
            for name in EXACT_ALWAYS:
                assert found[name] == stats[name], (device, entry, name)
            assert found["allocated_bytes"] <= stats["allocated_bytes"]
            assert found["active_bytes"] <= stats["active_bytes"]
            compared += 1
            exact_moments += int(exact[entry])
    return compared, exact_moments


def unsized(history: History) -> np.ndarray[Any, Any]:
    """At which entries there is a block whose size is not known."""
    blocks = history.blocks
    counts = np.zeros(len(history.levels.segments) + 1, np.int64)
    unknown = ~blocks.is_sized
    np.add.at(counts, blocks.alloc_event[unknown] + 1, 1)
    np.add.at(counts, blocks.free_event[unknown] + 1, -1)
    unknown_now: np.ndarray[Any, Any] = np.cumsum(counts)[:-1] > 0
    return unknown_now


@pytest.mark.parametrize(("seed", "options"), CONFIGURATIONS)
def test_levels_are_the_allocators(
    backend: str, device: ModuleType, seed: int, options: dict[str, Any]
) -> None:
    # GIVEN both recorders
    with (
        watched(backend, device, seed, **options) as workload,
        recorded_by_torch(device),
        tracer_for(backend) as tracer,
    ):
        # WHEN memory is used in every way there is, and statistics are taken
        workload.run(EVENTS)
        workload.leave_pending()
        workload.look()
        snapshots = [convert(tracer.snapshot()), convert(device.memory._snapshot())]
    # THEN both recordings have the same levels at these moments
    for snapshot in snapshots:
        compared, exact = check(snapshot, workload.moments)
        assert compared > 300
        if options.get("expandable") == "toggled":
            assert exact > 100
        else:
            assert exact == compared
            devices = range(len(workload.moments))
            assert [replay(snapshot, each).exact_from for each in devices] == [0 for _ in devices]


@pytest.mark.parametrize("expandable", ["off", "on", "toggled"])
def test_a_ring_that_lost_its_beginning(backend: str, device: ModuleType, expandable: str) -> None:
    # GIVEN rings of 1,500 events
    with (
        watched(backend, device, 25, expandable=expandable) as workload,
        recorded_by_torch(device, 1500),
        tracer_for(backend, 1500) as tracer,
    ):
        # WHEN they are overrun many times
        workload.run(EVENTS)
        workload.look()
        snapshots = [convert(tracer.snapshot()), convert(device.memory._snapshot())]
    # THEN they agree where they are exact: throughout, if no block can have been left whole
    for snapshot in snapshots:
        compared, exact = check(snapshot, workload.moments)
        assert compared > 50
        assert exact >= {"off": 30, "on": compared, "toggled": 10}[expandable]


@pytest.mark.parametrize("expandable", ["off", "on"])
def test_other_rules_of_rounding_and_splitting(
    backend: str, device: ModuleType, expandable: str
) -> None:
    if backend == "npu":
        pytest.skip("torch_npu can change none of these settings at run time")
    # GIVEN an allocator that rounds to eighths of a power of two, and leaves large blocks whole
    with watched(backend, device, 26, expandable=expandable) as workload:
        change_settings(
            device,
            "max_split_size_mb:21,roundup_power2_divisions:8,"
            f"expandable_segments:{expandable == 'on'}",
        )
        try:
            with tracer_for(backend) as tracer:
                # WHEN memory is used
                workload.run(EVENTS)
                for size in (40 * MIB, 24 * MIB):  # the second takes the first's place, whole
                    tensor = torch.empty(size, dtype=torch.uint8, device=backend)
                    workload.look()
                    del tensor
                snapshot = convert(tracer.snapshot())
        finally:
            change_settings(device, f"max_split_size_mb:{2**40},roundup_power2_divisions:1")
    # THEN the file tells what these rules are
    compared, exact = check(snapshot, workload.moments)
    assert compared == exact > 300


def change_settings(device: ModuleType, settings: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer torch has another name for it
        device.memory._set_allocator_settings(settings)


def tracer_for(backend: str, entries: int = ROOM) -> Tracer:
    return Tracer(device=backend, context=None, trace_alloc_max_entries=entries)
