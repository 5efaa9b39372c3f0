"""The peak and its call sites, against a model that keeps every moment of a made-up program."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytracer.errors import PytracerError
from pytracer.reading import Frame, Site, peak, sites_at_peak

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/functional.py"
TORCH_NPU = "/usr/lib/python3/dist-packages/torch_npu/functional.py"
# Innermost first. The call site is the first that is not torch's, else the innermost.
STACKS: list[list[dict[str, Any]]] = [
    [{"filename": "/home/me/model.py", "name": "forward", "line": 1}],
    [
        {"filename": TORCH, "name": "linear", "line": 7},
        {"filename": "/home/me/model.py", "name": "forward", "line": 1},
        {"filename": "/home/me/train.py", "name": "main", "line": 5},
    ],
    [
        {"filename": TORCH, "name": "linear", "line": 7},
        {"filename": TORCH_NPU, "name": "dropout", "line": 8},
    ],
    [
        {"filename": "/home/me/torch/tools.py", "name": "f", "line": 2},
        {"filename": "/home/me/train.py", "name": "main", "line": 6},
    ],
    [],
]
CALL_SITES: list[Frame | None] = [
    Frame("/home/me/model.py", "forward", 1),
    Frame("/home/me/model.py", "forward", 1),
    Frame(TORCH, "linear", 7),
    Frame("/home/me/torch/tools.py", "f", 2),
    None,
]
SLOT = 1000  # bytes between addresses, more than any allocation takes
FIRST_TIME_US = 1_700_000_000_000_000


@dataclass
class Block:
    size: int
    stack: int
    pending: bool = False


@dataclass
class Model:
    """An allocator that writes down each event with a copy of all that is alive after it."""

    alive: dict[int, Block] = field(default_factory=dict)
    trace: list[dict[str, Any]] = field(default_factory=list)
    moments: list[dict[int, Block]] = field(default_factory=lambda: [{}])

    def record(self, action: str, address: int, size: int, stack: int) -> None:
        time_us = FIRST_TIME_US + len(self.trace)
        event = {"action": action, "addr": address, "size": size, "time_us": time_us}
        self.trace.append(event | {"frames": STACKS[stack]})
        self.moments.append(dict(self.alive))

    def alloc(self, size: int, stack: int) -> None:
        address = next(a for a in range(SLOT, 10**9, SLOT) if a not in self.alive)  # reused soon
        self.record("segment_alloc", address, size, stack)
        self.alive[address] = Block(size, stack)
        self.record("alloc", address, size, stack)

    def free(self, which: int, stack: int) -> None:
        allocated = [address for address, block in self.alive.items() if not block.pending]
        if allocated:
            address = allocated[which % len(allocated)]
            size = self.alive[address].size
            self.alive[address] = Block(size, self.alive[address].stack, pending=True)
            self.record("free_requested", address, size, stack)

    def complete(self, which: int, stack: int) -> None:
        pending = [address for address, block in self.alive.items() if block.pending]
        if pending:
            address = pending[which % len(pending)]
            size = self.alive.pop(address).size
            self.record("free_completed", address, size, stack)
            self.record("segment_free", address, size, stack)

    def snapshot(self, lost: int) -> dict[str, Any]:
        """As the ring would give it after forgetting the first events."""
        segments = [
            {
                "device": 1,
                "blocks": [
                    {
                        "address": address,
                        "size": SLOT,
                        "requested_size": block.size,
                        "state": "active_pending_free" if block.pending else "active_allocated",
                        "frames": STACKS[block.stack],
                    },
                ],
            }
            for address, block in self.alive.items()
        ]
        other = {"address": 0, "requested_size": 10**6, "state": "active_allocated", "frames": []}
        idle = {"address": 5, "requested_size": 10**6, "state": "inactive", "frames": []}
        segments += [{"device": 0, "blocks": [other]}, {"device": 1, "blocks": [idle]}]
        return {"segments": segments, "device_traces": [[], self.trace[lost:]]}


operations = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, SLOT // 2), st.integers(0, len(STACKS) - 1)),
        st.tuples(
            st.sampled_from(["free", "complete"]),
            st.integers(0, 100),
            st.integers(0, len(STACKS) - 1),
        ),
    ),
    max_size=60,
)


def run(operations: list[tuple[str, int, int]]) -> Model:
    model = Model()
    for name, number, stack in operations:
        getattr(model, name)(number, stack)
    return model


@given(operations, st.integers(0, 200))
def test_peak_and_sites_equal_the_model(program: list[tuple[str, int, int]], lost: int) -> None:
    # GIVEN a program, and a ring that has lost some of its first events
    model = run(program)
    lost = min(lost, len(model.trace))
    moments = model.moments[lost:]  # before the first event left, and after each
    totals = [sum(block.size for block in moment.values()) for moment in moments]
    highest = totals.index(max(totals))

    # WHEN the peak is asked for
    snapshot = model.snapshot(lost)
    found = peak(snapshot, device=1)

    # THEN it is the model's
    assert found.peak_bytes == max(totals)
    assert found.event == (highest - 1 if highest else None)
    assert found.time_us == (FIRST_TIME_US + lost + highest - 1 if highest else None)
    assert (found.initial_bytes, found.final_bytes) == (totals[0], totals[-1])

    # AND the call sites are: unknown only where the allocation is older than the trace and the
    # block did not live to be in the segments
    expected: Counter[Frame | None] = Counter()
    counts: Counter[Frame | None] = Counter()
    for address, block in moments[highest].items():
        traced = [e["addr"] == address and e["action"] == "alloc" for e in model.trace[lost:]]
        freed = [e["addr"] == address and e["action"] == "free_completed" for e in model.trace]
        known = any(traced[:highest]) or not any(freed[lost + highest :])
        site = CALL_SITES[block.stack] if known else None
        expected[site] += block.size
        counts[site] += 1
    sites = sites_at_peak(snapshot, device=1, top=100)
    assert {site.call_site: site.size_bytes for site in sites} == expected
    assert {site.call_site: site.count for site in sites} == counts
    assert [s.size_bytes for s in sites] == sorted(expected.values(), reverse=True)


def test_the_whole_stack_is_the_one_with_most_bytes() -> None:
    # GIVEN two stacks that lead to one call site, and an allocation elsewhere
    model = run([("alloc", 10, 0), ("alloc", 30, 1), ("alloc", 25, 0), ("alloc", 5, 2)])
    # WHEN the sites are asked for
    first, second = sites_at_peak(model.snapshot(lost=0), device=1)
    # THEN the site has the bytes of both, and the larger one's frames
    stacks = [tuple(Frame(**frame) for frame in stack) for stack in STACKS]
    assert first == Site(65, 3, CALL_SITES[0], stacks[0])
    assert second == Site(5, 1, CALL_SITES[2], stacks[2])


def test_top_limits_the_sites() -> None:
    model = run([("alloc", 10, 0), ("alloc", 30, 2), ("alloc", 20, 3)])
    sites = sites_at_peak(model.snapshot(lost=0), device=1, top=2)
    assert [site.size_bytes for site in sites] == [30, 20]


@pytest.mark.parametrize("device", [-1, 2])
def test_a_device_that_is_not_there(device: int) -> None:
    with pytest.raises(PytracerError, match=f"device {device}: this snapshot has 2"):
        peak(Model().snapshot(lost=0), device=device)


def test_an_allocation_that_is_nowhere_afterwards() -> None:
    # GIVEN a trace that says an allocation is alive, and segments without it
    model = run([("alloc", 10, 0), ("alloc", 20, 1)])
    model.alive.popitem()
    snapshot = model.snapshot(lost=0)
    # WHEN it is read, THEN the contradiction is named, not averaged away
    with pytest.raises(PytracerError, match="less than nothing is allocated before event 0"):
        peak(snapshot, device=1)


@pytest.mark.parametrize(
    ("action", "message"),
    [("alloc", "event 1 allocates is not there"), ("free_completed", "event 2 frees is still")],
)
def test_a_trace_about_other_addresses(action: str, message: str) -> None:
    # GIVEN sizes that add up, but an address that does not
    model = run([("alloc", 10, 0), ("alloc", 10, 0), ("free", 0, 0), ("complete", 0, 0)])
    event = next(e for e in model.trace if e["action"] == action)
    event["addr"] = 9 * SLOT if action == "alloc" else 2 * SLOT
    snapshot = model.snapshot(lost=0 if action == "alloc" else 3)
    # WHEN the sites are asked for, THEN the event is named
    with pytest.raises(PytracerError, match=message):
        sites_at_peak(snapshot, device=1)


def test_an_empty_snapshot() -> None:
    snapshot: dict[str, Any] = {"segments": [], "device_traces": [[]]}
    assert peak(snapshot).peak_bytes == 0
    assert peak(snapshot).event is None
    assert sites_at_peak(snapshot) == []
