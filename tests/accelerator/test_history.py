"""Compare the `replay` of a recording with `memory_stats()` taken during the recording."""

import random
from contextlib import closing
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from accelerator.parity import drop_last_markers, recorded_by_torch
from accelerator.workload import MIB, Workload
from reference_reader import convert

from pytracer import Tracer, allocator_settings
from pytracer.analysis.history import History, replay
from pytracer.reading.snapshot import SNAPSHOT, Snapshot

EVENTS = 12_000
MAX_ENTRIES = 1 << 18
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

Samples = list[list[dict[str, int]]]  # by device


class SampledWorkload(Workload):
    """Samples the statistics of all devices at random times, also in bursts, pools and captures.

    The marker that the allocator's `snapshot()` writes into the trace shows the time of a sample.
    """

    def __init__(self, backend: str, seed: int, device: ModuleType, **options: Any) -> None:
        self.samples: Samples = [[] for _ in range(min(2, device.device_count()))]
        self._watched = device
        self._when = random.Random(seed)
        super().__init__(backend, seed, **options)

    def _churn(self, *arguments: Any) -> int:
        count = super()._churn(*arguments)
        self.sample(0.1)
        return count

    def _tensor(self, rng: random.Random) -> torch.Tensor:
        tensor = super()._tensor(rng)
        self.sample(0.3)
        return tensor

    def sample(self, chance: float = 1) -> None:
        if self._when.random() >= chance:
            return
        for device, samples in enumerate(self.samples):
            stats = self._watched.memory_stats(device)
            samples.append({name: stats[f"{key}.all.current"] for name, key in STATS.items()})
        # `memory_snapshot()` of torch 2.12 loses a reference to True with each call.
        self._watched.memory._snapshot()


def check(snapshot: Snapshot, samples: Samples) -> tuple[int, int]:
    """Return how many samples were compared, and at how many of them all levels are exact."""
    compared = exact_samples = 0
    for device, expected in enumerate(samples):
        history = replay(snapshot, device)
        (marks,) = np.nonzero(snapshot.traces[device].action == SNAPSHOT)
        expected = expected[len(expected) - len(marks) :]
        assert len(marks) == len(expected) > 0
        exact = ~unsized(history)
        assert exact[history.exact_from :].all()
        for entry, stats in zip(marks.tolist(), expected, strict=True):
            found = {name: int(getattr(history.usage, name)[entry]) for name in STATS}
            if exact[entry]:
                assert found == stats, (device, entry)
            for name in EXACT_ALWAYS:
                assert found[name] == stats[name], (device, entry, name)
            assert found["allocated_bytes"] <= stats["allocated_bytes"]
            assert found["active_bytes"] <= stats["active_bytes"]
            compared += 1
            exact_samples += int(exact[entry])
    return compared, exact_samples


def unsized(history: History) -> np.ndarray[Any, Any]:
    """Return for each level whether a block of unknown size is live."""
    blocks = history.blocks
    counts = np.zeros(len(history.usage.segments) + 1, np.int64)
    unknown = ~blocks.is_sized
    np.add.at(counts, blocks.alloc_event[unknown] + 1, 1)
    np.add.at(counts, blocks.free_event[unknown] + 1, -1)
    unknown_now: np.ndarray[Any, Any] = np.cumsum(counts)[:-1] > 0
    return unknown_now


@pytest.mark.parametrize(("seed", "options"), CONFIGURATIONS)
def test_levels_equal_the_allocators(
    backend: str, device: ModuleType, seed: int, options: dict[str, Any]
) -> None:
    # GIVEN both recorders
    with (
        closing(SampledWorkload(backend, seed, device, **options)) as workload,
        recorded_by_torch(device, None),
        tracer_for(backend) as tracer,
    ):
        # WHEN memory is used in all ways, and statistics are sampled
        workload.run(EVENTS)
        workload.leave_pending()
        workload.sample()
        traced = tracer.snapshot()
        native = drop_last_markers(device.memory._snapshot())
        snapshots = [convert(traced), convert(native)]
    # THEN both recordings have the sampled levels
    for snapshot in snapshots:
        compared, exact = check(snapshot, workload.samples)
        assert compared > 150 * len(workload.samples)
        if options.get("expandable") == "toggled":
            assert exact > 25 * len(workload.samples)  # 43 on an H200
        else:
            assert exact == compared
            devices = range(len(workload.samples))
            assert [replay(snapshot, i).exact_from for i in devices] == [0 for _ in devices]


@pytest.mark.parametrize(
    "expandable",
    ["toggled", *(pytest.param(value, marks=pytest.mark.long) for value in ("off", "on"))],
)
def test_a_ring_that_lost_its_first_events(
    backend: str, device: ModuleType, expandable: str
) -> None:
    # GIVEN rings of 1,500 events
    with (
        closing(SampledWorkload(backend, 25, device, expandable=expandable)) as workload,
        recorded_by_torch(device, None, 1500),
        tracer_for(backend, 1500) as tracer,
    ):
        # WHEN they are overwritten many times
        workload.run(EVENTS)
        workload.sample()
        traced = tracer.snapshot()
        native = drop_last_markers(device.memory._snapshot())
        snapshots = [convert(traced), convert(native)]
    # THEN exact levels are right, and with expandable segments all levels are exact
    for snapshot in snapshots:
        compared, exact = check(snapshot, workload.samples)
        devices = len(workload.samples)
        assert compared > 10 * devices  # 19 on an H200
        assert exact >= {"off": 15 * devices, "on": compared, "toggled": 5 * devices}[expandable]


@pytest.mark.parametrize("expandable", ["off", "on"])
def test_other_rules_of_rounding_and_splitting(
    backend: str, device: ModuleType, expandable: str
) -> None:
    if backend == "npu":
        pytest.skip("torch_npu can change none of these settings at run time")
    # GIVEN an allocator that rounds to eighths of a power of two, and does not split large blocks
    with (
        closing(SampledWorkload(backend, 26, device, expandable=expandable)) as workload,
        allocator_settings("max_split_size_mb:21,roundup_power2_divisions:8"),
        tracer_for(backend) as tracer,
    ):
        # WHEN memory is used
        workload.run(EVENTS)
        for size in (40 * MIB, 24 * MIB):  # the second reuses the first block unsplit
            tensor = torch.empty(size, dtype=torch.uint8, device=backend)
            workload.sample()
            del tensor
        snapshot = convert(tracer.snapshot())
    # THEN the file has the settings, and all levels are exact
    compared, exact = check(snapshot, workload.samples)
    assert compared == exact > 150 * len(workload.samples)


def tracer_for(backend: str, entries: int = MAX_ENTRIES) -> Tracer:
    return Tracer(device=backend, stack_depth=1, trace_alloc_max_entries=entries)
