"""Compare pytracer's record with that of PyTorch's own recorder, of the same activity."""

import copy
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from accelerator import parity
from accelerator.parity import (
    DifferenceError,
    Rules,
    Seen,
    Snapshot,
    check_parity,
    recorded_by_torch,
)
from accelerator.workload import Workload
from amount import amount
from contexts import with_context

from pytracer import Tracer

EVENTS = amount(30_000, 40_000)
MAX_ENTRIES = 1 << 20
ALL = Rules()
CONFIGURATIONS = [
    # seed, rules, options of the workload
    pytest.param(1, ALL, {}, id="segments"),
    pytest.param(2, ALL, {"expandable": "on"}, id="expandable"),
    pytest.param(3, ALL, {"expandable": "toggled", "concurrent": True}, id="toggled-threads"),
    pytest.param(4, Rules(depth=3), {"expandable": "toggled"}, id="three-frames"),
    pytest.param(5, Rules(context="alloc"), {"expandable": "toggled"}, id="alloc"),
    pytest.param(6, Rules(context="state"), {"concurrent": True}, id="state"),
    pytest.param(7, Rules(context=None), {"expandable": "on"}, id="none"),
]
LONG_RUN = int(os.environ.get("PYTRACER_PARITY_EVENTS", 3 * 20_000))
CHUNK = min(500_000, LONG_RUN // 3)


pytestmark = pytest.mark.usefixtures("no_collector")


def completed_at_once(trace: list[Any]) -> int:
    """Return how many frees were completed by the call that requested them."""

    def same(event: dict[str, Any]) -> dict[str, Any]:  # an NPU's entries of PyTorch have no time
        return {key: event[key] for key in event if key not in ("action", "time_us")}

    return sum(
        (requested["action"], completed["action"]) == ("free_requested", "free_completed")
        and same(requested) == same(completed)
        for requested, completed in itertools.pairwise(trace)
    )


@contextmanager
def activity(backend: str, seed: int, **options: Any) -> Iterator[Workload]:
    workload = Workload(backend, seed, compiled=backend == "cuda", **options)
    try:
        yield workload
    finally:
        workload.close()
        gc.collect()


def tracer_for(backend: str, rules: Rules = ALL, entries: int = MAX_ENTRIES) -> Tracer:
    tracer = Tracer(
        device=backend,
        stack_depth=rules.depth,
        trace_alloc_max_entries=entries,
        max_stack_bytes=2**28,  # the activity keeps compiling new functions
    )
    return with_context(tracer, rules.context)


def both_snapshots(device: ModuleType, tracer: Tracer) -> tuple[Snapshot, Snapshot]:
    """Return PyTorch's snapshot and pytracer's."""
    traced = tracer.snapshot()
    return parity.drop_last_markers(device.memory._snapshot()), traced


def check_seen(seen: Seen, backend: str, device: ModuleType, *, expandable: str = "off") -> None:
    """Check that the activity had all kinds of events."""
    actions = {"alloc", "free_requested", "free_completed", "oom"}
    if expandable != "on":
        actions |= {"segment_alloc", "segment_free"}
    if expandable != "off":
        actions |= {"segment_map", "segment_unmap"}
    if hasattr(device.memory, "_annotate_tensor"):
        actions.add("annotate")
    assert actions <= seen.actions.keys()
    assert seen.devices == min(2, device.device_count())
    assert len(seen.streams) >= 4
    # The first pool id is positive for graphs, and 0 for pools of the program.
    kinds = {True, False} if parity.HAS_POOLS else set()
    assert {pool[0] > 0 for pool in seen.pools if pool != (0, 0)} == kinds
    assert seen.delayed_frees > 100
    assert seen.pending_blocks >= 2
    if backend == "cuda":
        assert len(seen.labels["user_metadata"]) > 10
        assert any("Compiled" in label for label in seen.labels["compile_context"])


@pytest.mark.parametrize(("seed", "rules", "options"), CONFIGURATIONS)
def test_records_are_equal(
    backend: str, device: ModuleType, seed: int, rules: Rules, options: dict[str, Any]
) -> None:
    # GIVEN both recorders, switched on at the same point
    tracer = tracer_for(backend, rules)
    with (
        activity(backend, seed, **options) as workload,
        recorded_by_torch(device, rules.context),
    ):
        tracer.start()
        begun = time.time_ns() // 1000

        # WHEN memory is used in all ways
        workload.run(EVENTS)
        workload.leave_pending()
        native, traced = both_snapshots(device, tracer)
        ended = time.time_ns() // 1000
        tracer.stop()

    # THEN each event, segment, block, frame and setting is equal, and none is missing
    assert check_parity(native, traced, rules) >= EVENTS
    times = [event["time_us"] for trace in traced["device_traces"] for event in trace]
    assert begun - parity.CLOSE_US <= min(times)
    assert max(times) <= ended + parity.CLOSE_US
    for counts in traced["pytracer"]["devices"]:
        assert (counts["overwritten"], counts["live_dropped"], counts["labels_dropped"]) == (0,) * 3
    seen = Seen().add(native)
    check_seen(seen, backend, device, expandable=options.get("expandable", "off"))
    if rules.context == "all":
        assert seen.retries >= 1
        assert seen.deepest > ALL.depth  # so that `stack_depth` cuts some
        assert len(seen.stacks) > 500


@pytest.mark.parametrize("context", ["all", "alloc"])
def test_a_tracer_that_starts_later(backend: str, device: ModuleType, context: str) -> None:
    # GIVEN blocks whose allocations only PyTorch's recorder has recorded
    with (
        activity(backend, seed=11, expandable="toggled") as workload,
        recorded_by_torch(device, context),
    ):
        workload.run(5000)
        before = device.memory._snapshot()
        strangers = parity.live(before)
        # The snapshot leaves a marker in the trace.
        since = [len(trace) + 1 for trace in before["device_traces"]]
        rules = Rules(context=context, since=since, strangers=strangers)
        tracer = tracer_for(backend, rules).start()

        # WHEN the activity continues, and frees some of them
        workload.run(2500)
        native, traced = both_snapshots(device, tracer)
        tracer.stop()

    # THEN later events are equal, and blocks from before have no frames
    assert check_parity(native, traced, rules) >= 2500
    remaining = [blocks & now for blocks, now in zip(strangers, parity.live(native), strict=True)]
    assert sum(map(len, remaining)) > 10
    assert sum(map(len, strangers)) - sum(map(len, remaining)) > 50 * len(strangers)


def test_a_small_ring_holds_the_last_events(backend: str, device: ModuleType) -> None:
    # GIVEN a ring of 1,000 events
    tracer = tracer_for(backend, entries=1000)
    with activity(backend, seed=12) as workload, recorded_by_torch(device, "all"):
        tracer.start()

        # WHEN its events are overwritten many times
        workload.run(20_000)
        native, traced = both_snapshots(device, tracer)
        tracer.stop()

    # THEN it holds exactly the last 1,000 events of each device, a free that completes at once is
    # one event of two entries, blocks have all their frames, and the overwritten events are counted
    traces = native["device_traces"]
    events = [len(trace) - completed_at_once(trace) for trace in traces]
    assert min(events) > 5000
    held = [len(trace) for trace in traced["device_traces"]]
    assert min(held) > 1200
    since = [len(trace) - kept for trace, kept in zip(traces, held, strict=True)]
    assert check_parity(native, traced, Rules(since=since)) == sum(held)
    assert [k - completed_at_once(t[-k:]) for t, k in zip(traces, held, strict=True)] == (
        [1000] * len(held)
    )
    counts = traced["pytracer"]["devices"]
    assert [count["recorded"] for count in counts] == events
    assert [count["overwritten"] for count in counts] == [number - 1000 for number in events]


@pytest.mark.timeout(3600)
def test_a_long_run(backend: str, device: ModuleType) -> None:
    """Run for longer with PYTRACER_PARITY_EVENTS=10000000."""
    # GIVEN both recorders
    seen, compared = Seen(), 0
    tracer = tracer_for(backend)
    with activity(backend, seed=13, expandable="toggled", concurrent=True) as workload:
        tracer.start()
        while compared < LONG_RUN:
            with recorded_by_torch(device, "all"):
                # WHEN the activity continues
                tracer.clear()
                workload.run(CHUNK)
                native, traced = both_snapshots(device, tracer)

            # THEN each part is equal, and blocks from before PyTorch's recorder was switched on
            # again have their frames
            compared += check_parity(native, traced)
            seen.add(native)
        tracer.stop()
    assert seen.actions.total() >= LONG_RUN
    assert tracer.stats()["stacks"]["dropped"] == 0


# --- the comparison itself ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(request: pytest.FixtureRequest) -> tuple[Snapshot, Snapshot]:
    backend: str = request.getfixturevalue("backend")
    device: ModuleType = request.getfixturevalue("device")
    tracer = tracer_for(backend)
    with activity(backend, seed=14) as workload, recorded_by_torch(device, "all"):
        tracer.start()
        workload.run(1000)
        workload.leave_pending()
        snapshots = both_snapshots(device, tracer)
        tracer.stop()
    check_parity(*snapshots)
    return snapshots


def swapped(trace: list[Any]) -> None:
    place = next(i for i, event in enumerate(trace) if event["size"] != trace[i + 1]["size"])
    trace[place], trace[place + 1] = trace[place + 1], trace[place]


def first(entries: list[dict[str, Any]], key: str, value: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry[key] == value)


def entry_of(traced: Snapshot, kind: str) -> dict[str, Any]:
    """Return an entry of a snapshot in which a field is changed."""
    trace, segments = traced["device_traces"][0], traced["segments"]
    blocks = [block for segment in segments for block in segment["blocks"]]
    if kind == "frame":
        event = next(event for event in trace if len(event["frames"]) > 2)
        event["frames"] = [*event["frames"][:-1], {**event["frames"][-1]}]
        entry: dict[str, Any] = event["frames"][-1]
        return entry
    return {
        "event": first(trace[::-1], "action", "alloc"),
        "oom": first(trace[::-1], "action", "oom"),
        "segment": segments[-1],
        "block": first(blocks, "state", "active_pending_free"),
    }[kind]


LISTS: dict[str, Callable[[Snapshot], object]] = {
    "events swapped": lambda traced: swapped(traced["device_traces"][0]),
    "event dropped": lambda traced: traced["device_traces"][-1].pop(),
    "event added": lambda traced: traced["device_traces"][0].append(traced["device_traces"][0][-1]),
    "frames cut": lambda traced: entry_of(traced, "event")["frames"].pop(),
    "block dropped": lambda traced: traced["segments"][0]["blocks"].pop(),
    "segment dropped": lambda traced: traced["segments"].pop(),
}
FIELDS = [
    *(("event", key, None) for key in ("addr", *parity.COMMON[1:], *parity.LABELS)),
    *(("event", "time_us", by_us) for by_us in (-10_000_000, 10_000_000)),
    ("oom", "device_free", None),
    *(("frame", key, None) for key in ("name", "filename", "line")),
    *(("segment", key, None) for key in parity.SEGMENT),
    *(("block", key, None) for key in (*parity.BLOCK, "frames")),
]


@pytest.mark.parametrize("damage", [*LISTS, *FIELDS], ids=str)
def test_the_comparison_detects(recorded: tuple[Snapshot, Snapshot], damage: Any) -> None:
    # GIVEN two equal snapshots, one of them damaged in one place
    native, traced = recorded
    damaged = copy.deepcopy(traced)
    if damage in LISTS:
        LISTS[damage](damaged)
    else:
        kind, key, by = damage
        entry = entry_of(damaged, kind)
        entry[key] = object() if by is None else entry[key] + by

    # THEN the comparison fails
    with pytest.raises(DifferenceError):
        check_parity(native, damaged)
