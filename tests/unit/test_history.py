"""`replay` against an allocator that knows what it has, and against a second, plain replay."""

import copy
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plain_history
import pytest
from plain_allocator import Allocator
from plain_history import MIB, Rules
from plain_reader import convert, read

from pytracer.errors import PytracerError
from pytracer.reading.history import ContradictionError, History, Levels, replay
from pytracer.reading.snapshot import (
    ALLOC,
    ALLOCATED,
    FREE_REQUESTED,
    INACTIVE,
    NO_TIME,
    Snapshot,
)

GOLDEN = Path(__file__).parent.parent / "golden"

DIVISIONS = {20 + i: 8 if i < 2 else 4 for i in range(16)}
EXACT_ALWAYS = ("requested_bytes", "reserved_bytes", "segments")
NAMES = [each.name for each in dataclasses.fields(Levels)]

# name: rules, whether segments expand ("random": at times), what addresses are aligned to
ALLOCATORS: dict[str, tuple[Rules, Any, int]] = {
    "segments": (Rules(), False, 0),
    "expandable": (Rules(), True, 0),
    "toggled": (Rules(toggled=True), "random", 0),
    "max-split": (Rules(max_split=24 * MIB), False, 0),
    "max-split-toggled": (Rules(max_split=24 * MIB, toggled=True), "random", 0),
    "divisions": (Rules(divisions=DIVISIONS), False, 0),
    "npu": (Rules(padding=32, aligned=True), False, 0),
    "npu-unpadded": (Rules(aligned=True), False, 0),  # from CANN 9.1.0 on
    "npu-toggled": (Rules(padding=32, toggled=True, aligned=True), "random", 16384),
    "cpu": (Rules(unit=1), False, 0),
}


def active(name: str, seed: int, steps: int = 400, keeps_levels: bool = True) -> Allocator:
    """An allocator that has been in use."""
    rules, expands, aligned = ALLOCATORS[name]
    rng = random.Random(seed)
    allocator = Allocator(rules, aligned, keeps_levels)
    allocator.expands = expands is True
    live: list[int] = []
    pending: list[int] = []
    most = rng.choice((5, 20, 60))
    for _ in range(steps):
        kind = rng.random()
        if kind < 0.03:
            allocator.empty_cache()
        elif kind < 0.05 and expands == "random":
            allocator.expands = rng.random() < 0.5
        elif kind < 0.15 and pending:
            allocator.complete(pending.pop(rng.randrange(len(pending))))
        elif live and (len(live) > most or rng.random() < 0.48):
            address = live.pop(rng.randrange(len(live)))
            waits = rng.random() < 0.2 and rules.unit > 1
            allocator.free(address, waits)
            if waits:
                pending.append(address)
        else:
            pool = rng.choice([(0, 0)] * 6 + [(0, 1), (2, 0)])
            live.append(allocator.malloc(size(rng), rng.choice((0, 0, 0, 7)), pool))
    return allocator


def tells_padding(allocator: Allocator) -> bool:
    """Whether a block in the end tells how large its request was made."""
    padded = ALLOCATORS["npu"][0]
    return any(
        block.size <= MIB and Rules().rounded(block.requested) != padded.rounded(block.requested)
        for block in allocator.live()
    )


def size(rng: random.Random) -> int:
    return rng.choice(
        (
            rng.randrange(1, 3000),
            512 * rng.randrange(1, 2000),
            rng.randrange(1, MIB),
            rng.randrange(MIB, 12 * MIB),
            MIB // 4 * rng.randrange(4, 60),
            20 * MIB - rng.randrange(0, 2 * MIB),
            rng.randrange(10 * MIB, 50 * MIB),
        )
    )


def written(allocator: Allocator, name: str, first: int = 0, **about: Any) -> Snapshot:
    """What a file of the allocator has, whose ring begins with an event."""
    rules, expands, _ = ALLOCATORS[name]
    limit = rules.max_split
    backend = name.split("-")[0] if name[:3] in ("npu", "cpu") else "cuda"
    return convert(
        {
            "segments": allocator.state(),
            "device_traces": [allocator.events[first:]],
            "allocator_settings": {
                "max_split_size": limit if limit < 2**63 else -1,
                "expandable_segments": bool(expands),
                "roundup_power2_divisions": {
                    str(2**i): rules.divisions.get(20 + i, 0) for i in range(16)
                },
            },
            "pytracer": {
                "backends": [backend],
                "devices": [{"index": 0, "is_cpu": backend == "cpu"}],
                **about,
            },
        },
        "a.pickle",
    )


def check_same(history: History, plain: tuple[list[Any], list[plain_history.Block], int]) -> None:
    levels, blocks, exact_from = plain
    for name in NAMES:
        assert getattr(history.levels, name).tolist() == [level[name] for level in levels], name
    assert [tuple(row) for row in rows(history)] == [dataclasses.astuple(b) for b in blocks]
    assert history.exact_from == exact_from


def rows(history: History) -> Iterator[tuple[Any, ...]]:
    b = history.blocks
    columns = (
        b.address,
        b.requested_bytes,
        b.size_bytes,
        b.alloc_event,
        b.free_requested_event,
        b.free_event,
        b.is_sized,
    )
    return zip(*(column.tolist() for column in columns), strict=True)


def check_true(history: History, allocator: Allocator, first: int) -> None:
    """What is called exact is true, and the rest is no more than is true."""
    truth = allocator.levels[first:]
    blocks = history.blocks
    unsized = np.zeros(len(truth) + 1, np.int64)
    for i in np.flatnonzero(~blocks.is_sized):
        unsized[blocks.alloc_event[i] + 1] += 1
        unsized[blocks.free_event[i] + 1] -= 1
    exact = np.cumsum(unsized)[:-1] == 0
    assert exact[history.exact_from :].all()
    assert history.exact_from == 0 or not exact[history.exact_from - 1]
    for name in NAMES:
        column = getattr(history.levels, name)
        true = np.array([level[name] for level in truth])
        some = slice(None) if name in EXACT_ALWAYS else exact
        np.testing.assert_array_equal(column[some], true[some], name)
    for name in ("allocated_bytes", "active_bytes"):
        true = np.array([level[name] for level in truth])
        assert (getattr(history.levels, name) <= true).all()
    last = len(allocator.events) - first
    for i in range(len(blocks)):
        freed = int(blocks.free_event[i])
        true_size = allocator.sizes[
            int(blocks.address[i]), None if freed == last else first + freed
        ]
        if blocks.is_sized[i]:
            assert blocks.size_bytes[i] == true_size
        else:
            assert blocks.size_bytes[i] <= true_size


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ALLOCATORS)
def test_levels_and_blocks_are_the_allocators(name: str, seed: int) -> None:
    # GIVEN an allocator that was in use, and rings that have all, or lost their beginning
    allocator = active(name, seed)
    for first in (0, *random.Random(seed).sample(range(len(allocator.events)), 2)):
        snapshot = written(allocator, name, first)

        # WHEN the trace is replayed
        history = replay(snapshot)

        # THEN everything is as the allocator had it, and as a plain replay finds it
        check_true(history, allocator, first)
        if "npu" not in name or tells_padding(allocator):
            check_same(history, plain_history.replay(snapshot, 0, ALLOCATORS[name][0]))
        if first == 0 and "toggled" not in name:
            assert history.exact_from == 0


def test_lifetimes_have_what_the_file_tells_of_blocks() -> None:
    # GIVEN a ring that lost the allocation of one block that is freed in it, and of one that stays
    allocator = Allocator(Rules())
    goes, stays = allocator.malloc(100, stream=3), allocator.malloc(200, stream=4)
    first = len(allocator.events)
    allocator.free(goes, waits=True)
    new = allocator.malloc(300, stream=5, pool=(0, 1))
    allocator.complete(goes)
    allocator.free(stays, waits=True)
    snapshot = written(allocator, "segments", first)

    # WHEN it is replayed
    blocks = replay(snapshot).blocks

    # THEN stream, pool and stack are those of the allocation, as far as it is told
    assert blocks.address.tolist() == [goes, stays, new]
    assert blocks.stream.tolist() == [3, 4, 5]
    assert snapshot.pools[blocks.pool].tolist() == [[0, 0], [0, 0], [0, 1]]
    names = [[f.name for f in snapshot.stacks.frames(stack)] for stack in blocks.stack]
    assert names == [[], ["kept"], ["alloc"]]
    assert blocks.alloc_event.tolist() == [-1, -1, 2]
    assert blocks.free_requested_event.tolist() == [0, 4, 5]
    assert blocks.free_event.tolist() == [3, 5, 5]
    assert len(blocks) == 3


def test_what_was_freed_before_the_trace_and_completed_in_it() -> None:
    # GIVEN a ring that begins while a free is pending
    allocator = Allocator(Rules())
    address = allocator.malloc(1000)
    allocator.free(address, waits=True)
    first = len(allocator.events)
    allocator.complete(address)
    # WHEN it is replayed
    history = replay(written(allocator, "segments", first))
    # THEN it was active then, and not allocated
    assert history.levels.active_bytes.tolist() == [1024, 0]
    assert history.levels.allocated_bytes.tolist() == [0, 0]
    assert history.blocks.free_requested_event.tolist() == [-1]


@pytest.mark.parametrize("first", [0, 50])
def test_files_that_leave_requests_to_free_out(first: int) -> None:
    # GIVEN a file of torch's recorder with skip_actions=["free_requested"]
    allocator = active("segments", 3)
    for block in allocator.live():
        if block.state == "active_pending_free":
            allocator.complete(block.address)
    full = written(allocator, "segments", first)
    allocator.events[first:] = [
        event for event in allocator.events[first:] if event["action"] != "free_requested"
    ]
    # WHEN it is replayed
    history = replay(written(allocator, "segments", first))
    # THEN blocks are allocated until they are free, and all else is the same
    kept = np.flatnonzero(full.traces[0].action != FREE_REQUESTED)
    expected = replay(full)
    entries = np.concatenate(([0], kept + 1))
    for name in {*NAMES} - {"allocated_bytes"}:
        column = getattr(expected.levels, name)[entries]
        assert getattr(history.levels, name).tolist() == column.tolist(), name
    assert history.levels.allocated_bytes.tolist() == history.levels.active_bytes.tolist()
    assert history.blocks.size_bytes.tolist() == expected.blocks.size_bytes.tolist()


def test_files_that_do_not_tell_what_was_requested() -> None:
    # GIVEN a file whose blocks have their size alone, as torch before 2.0 wrote them
    allocator = active("segments", 4)
    snapshot = written(allocator, "segments")
    blocks = dataclasses.replace(snapshot.blocks, requested_bytes=snapshot.blocks.size_bytes.copy())
    # WHEN it is replayed
    history = replay(dataclasses.replace(snapshot, blocks=blocks, about={}))
    # THEN the allocations in the trace tell it
    expected = replay(snapshot)
    for name in NAMES:
        column = getattr(expected.levels, name)
        assert getattr(history.levels, name).tolist() == column.tolist()


@pytest.mark.parametrize("name", ["segments", "expandable", "npu"])
@pytest.mark.parametrize("seed", range(4))
def test_files_of_other_recorders_tell_their_allocator_by_its_blocks(name: str, seed: int) -> None:
    # GIVEN a native file; torch_npu's have neither settings nor times
    allocator = active(name, seed)
    snapshot = dataclasses.replace(written(allocator, name), about={})
    if name == "npu":
        snapshot = dataclasses.replace(snapshot, allocator_settings={})
    # WHEN it is replayed
    history = replay(snapshot)
    # THEN it has the allocator's levels
    check_true(history, allocator, 0)
    assert history.exact_from == 0


@pytest.mark.parametrize(
    ("padding", "blocks", "sizes"),
    [(32, 2, [1024, 1024]), (0, 2, [512, 512]), (32, 1, [512]), (0, 1, [512])],
)
@pytest.mark.parametrize("native", [True, False])
def test_npu_files_with_no_blocks_in_the_end(
    native: bool, padding: int, blocks: int, sizes: list[int]
) -> None:
    # GIVEN a file of an NPU on which nothing is allocated in the end
    allocator = Allocator(Rules(padding=padding))
    for address in [allocator.malloc(512) for _ in range(blocks)]:
        allocator.free(address)
    snapshot = written(allocator, "npu")
    if native:  # neither settings nor times
        snapshot.traces[0].time_us[:] = NO_TIME
        snapshot = dataclasses.replace(snapshot, about={}, allocator_settings={})
    # WHEN it is replayed
    history = replay(snapshot)
    # THEN where blocks begin tells whether requests were padded; a single block does not
    assert history.blocks.size_bytes.tolist() == sizes
    assert history.blocks.is_sized.tolist() == [blocks > 1] * blocks


def test_npu_blocks_that_a_graph_restored_are_not_padded_again() -> None:
    # GIVEN blocks of a graph's pool, whose requests are the sizes they had before
    allocator = Allocator(Rules())
    restored = [allocator.malloc(size) for size in (1024, 2048)]
    allocator.rules = Rules(padding=32)
    allocator.malloc(512)
    for address in restored:
        allocator.free(address)
    # WHEN the file is replayed
    history = replay(written(allocator, "npu"))
    # THEN they have no room for more
    check_true(history, allocator, 0)
    assert history.blocks.size_bytes.tolist() == [1024, 2048, 1024]


@pytest.mark.parametrize("seed", range(6))
def test_sizes_that_no_known_rule_makes_are_not_called_exact(seed: int) -> None:
    # GIVEN an allocator that rounds to parts of powers of two, and a file that does not tell
    name = "divisions"
    allocator = active(name, seed)
    snapshot = dataclasses.replace(written(allocator, name), allocator_settings={})
    # WHEN it is replayed
    history = replay(snapshot)
    # THEN what is gone in the end has the least size it can have, and only the rest is exact
    check_true(history, allocator, 0)
    in_end = history.blocks.free_event == len(snapshot.traces[0])
    assert history.blocks.is_sized[in_end].all()
    assert not history.blocks.is_sized[~in_end].all()


@pytest.mark.parametrize("requested", [1000, 5 * MIB])
def test_blocks_of_a_pool_that_does_not_split(requested: int) -> None:
    # GIVEN a block that has its segment for itself, as with MemPool(no_split=True), and another
    allocator = Allocator(Rules())
    gone = allocator.malloc(requested, pool=(0, 1))
    kept = allocator.malloc(requested, pool=(0, 2))
    allocator.free(gone)
    state = allocator.state()
    for segment in state:
        if segment["address"] == kept:
            whole, _ = segment["blocks"]
            segment["blocks"] = [whole | {"size": segment["total_size"]}]
    snapshot = written(allocator, "segments")
    content = convert({"segments": state, "device_traces": [allocator.events]})
    # WHEN the file is replayed
    history = replay(dataclasses.replace(snapshot, blocks=content.blocks))
    # THEN the rules are not taken for known
    least = Rules().rounded(requested)
    assert history.blocks.size_bytes.tolist() == [least, 2 * MIB if least < MIB else 20 * MIB]
    assert history.blocks.is_sized.tolist() == [False, True]
    assert history.exact_from == len(allocator.events)


def test_each_device_has_its_own() -> None:
    # GIVEN two devices with the same addresses
    one, other = active("segments", 5), active("expandable", 6)
    segments = one.state() + [segment | {"device": 1} for segment in other.state()]
    snapshot = convert({"segments": segments, "device_traces": [one.events, other.events]})
    # WHEN each is replayed, THEN it has its own levels
    for device, allocator in enumerate((one, other)):
        check_true(replay(snapshot, device), allocator, 0)
    # AND there is no third
    with pytest.raises(PytracerError, match="device 2: this snapshot has 2, counted from 0"):
        replay(snapshot, 2)


def test_an_empty_trace() -> None:
    # GIVEN a state without any event
    allocator = active("segments", 7)
    # WHEN it is replayed
    history = replay(written(allocator, "segments", len(allocator.events)))
    # THEN the state is all there is
    assert {name: getattr(history.levels, name).tolist() for name in NAMES} == {
        name: [allocator.levels[-1][name]] for name in NAMES
    }
    assert len(history.blocks) == len(allocator.live())


def test_a_trace_that_does_not_lead_to_the_state() -> None:
    # GIVEN a file that has no allocations, as with skip_actions=["alloc"]
    allocator = Allocator(Rules())
    kept = allocator.malloc(100)
    allocator.free(allocator.malloc(5000))
    allocator.malloc(6000)
    for at in (5, 2):
        del allocator.events[at]
    snapshot = written(allocator, "segments")
    # WHEN it is replayed
    with pytest.raises(ContradictionError) as raised:
        replay(snapshot)
    # THEN the first event, from the end, that contradicts the rest is named, with file and remedy
    message = str(raised.value)
    address = kept + 512
    assert f"event 3, free_completed of 5000 bytes at {address:#x}: a block is there" in message
    assert message.startswith("a.pickle: the trace of device 0 ")
    assert "skip_actions" in message


@pytest.mark.parametrize("name", ALLOCATORS)
def test_spoiled_columns_are_refused_or_make_sense(name: str) -> None:
    # GIVEN a snapshot
    rng = random.Random(name)
    original = written(active(name, 8, 150), name, 20)
    refused = 0
    for _ in range(300):
        # WHEN some of its numbers are others
        snapshot = copy.deepcopy(original)
        trace, segments, blocks = snapshot.traces[0], snapshot.segments, snapshot.blocks
        columns = [trace.address, trace.size_bytes, trace.action] * 5
        columns += [segments.address, segments.size_bytes, segments.is_expandable]
        columns += [blocks.address, blocks.size_bytes, blocks.requested_bytes, blocks.state]
        column = rng.choice(columns)
        at = rng.randrange(len(column))
        if column.dtype == np.int64:
            column[at] = rng.choice(
                (int(column[at]) + 512 * rng.randrange(-3, 4), -1, 0, 2**63 - 1, -(2**63), 2**61)
            )
        else:
            column[at] = rng.randrange(12)
        # THEN that is said, or the answer holds together
        try:
            levels = replay(snapshot).levels
        except ContradictionError:
            refused += 1
            continue
        assert (levels.active_bytes <= levels.reserved_bytes).all()
        assert (levels.allocated_bytes <= levels.active_bytes).all()
        assert (levels.inactive_split_bytes >= 0).all()
    assert refused > 150


@pytest.mark.parametrize("path", sorted(GOLDEN.rglob("*.pickle")), ids=lambda path: path.stem)
def test_golden_files(path: Path) -> None:
    # GIVEN a file of a released version, ours or torch's
    snapshot = read(path)
    for device in range(len(snapshot.traces)):
        # WHEN it is replayed
        history = replay(snapshot, device)
        # THEN it ends in the state
        mine = snapshot.segments.device == device
        blocks = snapshot.blocks
        active_now = mine[blocks.segment] & (blocks.state != INACTIVE)
        allocated_now = mine[blocks.segment] & (blocks.state == ALLOCATED)
        levels = history.levels
        assert levels.active_bytes[-1] == blocks.size_bytes[active_now].sum()
        assert levels.requested_bytes[-1] == blocks.requested_bytes[active_now].sum()
        assert levels.allocated_bytes[-1] == blocks.size_bytes[allocated_now].sum()
        assert levels.reserved_bytes[-1] == snapshot.segments.size_bytes[mine].sum()
        assert history.exact_from == 0
        assert (history.blocks.alloc_event[history.blocks.alloc_event >= 0]).tolist() == (
            np.flatnonzero(snapshot.traces[device].action == ALLOC).tolist()
        )
