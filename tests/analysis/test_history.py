"""Test `replay` against an allocator that knows its own state, and against a reference replay."""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_history
from amount import amount
from random_allocators import ALLOCATORS, snapshot_of, used_allocator
from reference_allocator import Allocator
from reference_history import MIB, Rules
from reference_reader import convert, read

from pytracer.analysis.history import ContradictionError, History, Usage, replay
from pytracer.errors import PytracerError
from pytracer.reading.metadata import FileMetadata
from pytracer.reading.snapshot import ALLOC, ALLOCATED, FREE_REQUESTED, INACTIVE, NO_TIME

GOLDEN = Path(__file__).parent.parent / "golden"

EXACT_ALWAYS = ("requested_bytes", "reserved_bytes", "segments")
NAMES = [field.name for field in dataclasses.fields(Usage)]


def reveals_padding(allocator: Allocator) -> bool:
    """Return whether the size of a live block shows that requests are padded."""
    padded = ALLOCATORS["npu"][0]
    return any(
        block.size <= MIB and Rules().rounded(block.requested) != padded.rounded(block.requested)
        for block in allocator.live()
    )


def check_same(
    history: History, reference: tuple[list[Any], list[reference_history.Block], int]
) -> None:
    usage, blocks, exact_from = reference
    for name in NAMES:
        assert getattr(history.usage, name).tolist() == [level[name] for level in usage], name
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


def check_bounds(history: History, allocator: Allocator, first: int) -> None:
    """Check that exact values are true, and that other values are lower bounds of the true ones."""
    truth = allocator.usage[first:]
    blocks = history.blocks
    unsized = np.zeros(len(truth) + 1, np.int64)
    for i in np.flatnonzero(~blocks.is_sized):
        unsized[blocks.alloc_event[i] + 1] += 1
        unsized[blocks.free_event[i] + 1] -= 1
    exact = np.cumsum(unsized)[:-1] == 0
    assert exact[history.exact_from :].all()
    assert history.exact_from == 0 or not exact[history.exact_from - 1]
    for name in NAMES:
        column = getattr(history.usage, name)
        true = np.array([level[name] for level in truth])
        selected = slice(None) if name in EXACT_ALWAYS else exact
        np.testing.assert_array_equal(column[selected], true[selected], name)
    for name in ("allocated_bytes", "active_bytes"):
        true = np.array([level[name] for level in truth])
        column = getattr(history.usage, name)
        assert (column <= true).all()
        # AND the difference is within the upper bound
        most = [level + history.uncertain_at(i) for i, level in enumerate(column.tolist())]
        assert (true <= most).all()
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


@pytest.mark.parametrize("seed", range(amount(5, 12)))
@pytest.mark.parametrize("name", ALLOCATORS)
def test_levels_and_blocks_are_the_allocators(name: str, seed: int) -> None:
    # GIVEN an allocator after random use, and rings with all events, or without the first ones
    allocator = used_allocator(name, seed)
    for first in (0, *random.Random(seed).sample(range(len(allocator.events)), 2)):
        snapshot = snapshot_of(allocator, name, first)

        # WHEN the trace is replayed
        history = replay(snapshot)

        # THEN the result equals the allocator's state and the reference replay's result
        check_bounds(history, allocator, first)
        if "npu" not in name or reveals_padding(allocator):
            check_same(history, reference_history.replay(snapshot, 0, ALLOCATORS[name][0]))
        if first == 0 and "toggled" not in name:
            assert history.exact_from == 0


def test_lifetimes_have_stream_pool_and_stack() -> None:
    # GIVEN a ring that lost the allocations of two blocks, one of which is freed in the trace
    allocator = Allocator(Rules())
    freed, kept = allocator.malloc(100, stream=3), allocator.malloc(200, stream=4)
    first = len(allocator.events)
    allocator.free(freed, waits=True)
    new = allocator.malloc(300, stream=5, pool=(0, 1))
    allocator.complete(freed)
    allocator.free(kept, waits=True)
    snapshot = snapshot_of(allocator, "segments", first)

    # WHEN it is replayed
    blocks = replay(snapshot).blocks

    # THEN stream, pool and stack are those of the allocation, if the file has them
    assert blocks.address.tolist() == [freed, kept, new]
    assert blocks.stream.tolist() == [3, 4, 5]
    assert snapshot.pools[blocks.pool].tolist() == [[0, 0], [0, 0], [0, 1]]
    names = [[f.name for f in snapshot.stacks.frames(stack)] for stack in blocks.stack]
    assert names == [[], ["kept"], ["alloc"]]
    assert blocks.alloc_event.tolist() == [-1, -1, 2]
    assert blocks.free_requested_event.tolist() == [0, 4, 5]
    assert blocks.free_event.tolist() == [3, 5, 5]
    assert len(blocks) == 3


def test_a_free_requested_before_the_trace_and_completed_in_it() -> None:
    # GIVEN a ring that begins while a free is pending
    allocator = Allocator(Rules())
    address = allocator.malloc(1000)
    allocator.free(address, waits=True)
    first = len(allocator.events)
    allocator.complete(address)
    # WHEN it is replayed
    history = replay(snapshot_of(allocator, "segments", first))
    # THEN the block is active before, but not allocated
    assert history.usage.active_bytes.tolist() == [1024, 0]
    assert history.usage.allocated_bytes.tolist() == [0, 0]
    assert history.blocks.free_requested_event.tolist() == [-1]


@pytest.mark.parametrize("first", [0, 50])
def test_files_without_free_requested_events(first: int) -> None:
    # GIVEN a file of torch's recorder with skip_actions=["free_requested"]
    allocator = used_allocator("segments", 3)
    for block in allocator.live():
        if block.state == "active_pending_free":
            allocator.complete(block.address)
    full = snapshot_of(allocator, "segments", first)
    allocator.events[first:] = [
        event for event in allocator.events[first:] if event["action"] != "free_requested"
    ]
    # WHEN it is replayed
    history = replay(snapshot_of(allocator, "segments", first))
    # THEN blocks are allocated until their free completes, and all else is unchanged
    kept = np.flatnonzero(full.traces[0].action != FREE_REQUESTED)
    expected = replay(full)
    entries = np.concatenate(([0], kept + 1))
    for name in {*NAMES} - {"allocated_bytes"}:
        column = getattr(expected.usage, name)[entries]
        assert getattr(history.usage, name).tolist() == column.tolist(), name
    assert history.usage.allocated_bytes.tolist() == history.usage.active_bytes.tolist()
    assert history.blocks.size_bytes.tolist() == expected.blocks.size_bytes.tolist()


def test_files_without_requested_sizes_of_blocks() -> None:
    # GIVEN a file whose blocks have no requested size, as torch before 2.0 wrote them
    allocator = used_allocator("segments", 4)
    snapshot = snapshot_of(allocator, "segments")
    blocks = dataclasses.replace(snapshot.blocks, requested_bytes=snapshot.blocks.size_bytes.copy())
    # WHEN it is replayed
    history = replay(dataclasses.replace(snapshot, blocks=blocks, metadata=FileMetadata()))
    # THEN the requested sizes come from the allocations in the trace
    expected = replay(snapshot)
    for name in NAMES:
        column = getattr(expected.usage, name)
        assert getattr(history.usage, name).tolist() == column.tolist()


@pytest.mark.parametrize("name", ["segments", "expandable", "npu"])
@pytest.mark.parametrize("seed", range(4))
def test_files_of_other_recorders_reveal_their_allocator_by_its_blocks(
    name: str, seed: int
) -> None:
    # GIVEN a file of another recorder; those of torch_npu have neither settings nor times
    allocator = used_allocator(name, seed)
    snapshot = dataclasses.replace(snapshot_of(allocator, name), metadata=FileMetadata())
    if name == "npu":
        snapshot = dataclasses.replace(snapshot, allocator_settings={})
    # WHEN it is replayed
    history = replay(snapshot)
    # THEN it has the allocator's levels
    check_bounds(history, allocator, 0)
    assert history.exact_from == 0


@pytest.mark.parametrize(
    ("padding", "blocks", "sizes"),
    [(32, 2, [1024, 1024]), (0, 2, [512, 512]), (32, 1, [512]), (0, 1, [512])],
)
@pytest.mark.parametrize("native", [True, False])
def test_npu_files_without_blocks_at_the_end(
    native: bool, padding: int, blocks: int, sizes: list[int]
) -> None:
    # GIVEN a file of an NPU on which no memory is allocated at the end
    allocator = Allocator(Rules(padding=padding))
    for address in [allocator.malloc(512) for _ in range(blocks)]:
        allocator.free(address)
    snapshot = snapshot_of(allocator, "npu")
    if native:  # torch_npu writes neither settings nor times
        snapshot.traces[0].time_us[:] = NO_TIME
        snapshot = dataclasses.replace(snapshot, metadata=FileMetadata(), allocator_settings={})
    # WHEN it is replayed
    history = replay(snapshot)
    # THEN the begins of blocks reveal whether requests were padded, but that of one block does not
    assert history.blocks.size_bytes.tolist() == sizes
    assert history.blocks.is_sized.tolist() == [blocks > 1] * blocks


def test_npu_blocks_restored_by_a_graph_are_not_padded_again() -> None:
    # GIVEN blocks of a graph's pool, whose requested sizes are their previous block sizes
    allocator = Allocator(Rules())
    restored = [allocator.malloc(size) for size in (1024, 2048)]
    allocator.rules = Rules(padding=32)
    allocator.malloc(512)
    for address in restored:
        allocator.free(address)
    # WHEN the file is replayed
    history = replay(snapshot_of(allocator, "npu"))
    # THEN these blocks have no padding
    check_bounds(history, allocator, 0)
    assert history.blocks.size_bytes.tolist() == [1024, 2048, 1024]


@pytest.mark.parametrize("seed", range(6))
def test_sizes_by_unknown_rules_are_not_called_exact(seed: int) -> None:
    # GIVEN an allocator that rounds to parts of powers of two, and a file without this setting
    name = "divisions"
    allocator = used_allocator(name, seed)
    snapshot = dataclasses.replace(snapshot_of(allocator, name), allocator_settings={})
    # WHEN it is replayed
    history = replay(snapshot)
    # THEN freed blocks have the smallest possible size, and only the other blocks are exact
    check_bounds(history, allocator, 0)
    in_end = history.blocks.free_event == len(snapshot.traces[0])
    assert history.blocks.is_sized[in_end].all()
    assert not history.blocks.is_sized[~in_end].all()


@pytest.mark.parametrize("requested", [1000, 5 * MIB])
def test_blocks_of_a_pool_that_does_not_split(requested: int) -> None:
    # GIVEN two blocks that have a segment each, as with MemPool(no_split=True), one of them freed
    allocator = Allocator(Rules())
    gone = allocator.malloc(requested, pool=(0, 1))
    kept = allocator.malloc(requested, pool=(0, 2))
    allocator.free(gone)
    state = allocator.state()
    for segment in state:
        if segment["address"] == kept:
            block, _ = segment["blocks"]
            segment["blocks"] = [block | {"size": segment["total_size"]}]
    snapshot = snapshot_of(allocator, "segments")
    content = convert({"segments": state, "device_traces": [allocator.events]})
    # WHEN the file is replayed
    history = replay(dataclasses.replace(snapshot, blocks=content.blocks))
    # THEN the size of the freed block is not called exact
    smallest = Rules().rounded(requested)
    sizes = [smallest, 2 * MIB if smallest < MIB else 20 * MIB]
    assert history.blocks.size_bytes.tolist() == sizes
    assert history.blocks.is_sized.tolist() == [False, True]
    assert history.exact_from == len(allocator.events)


def test_each_device_has_its_own_history() -> None:
    # GIVEN two devices with the same addresses
    allocators = used_allocator("segments", 5), used_allocator("expandable", 6)
    first, second = allocators
    segments = first.state() + [segment | {"device": 1} for segment in second.state()]
    snapshot = convert({"segments": segments, "device_traces": [first.events, second.events]})
    # WHEN each is replayed, THEN it has its own levels
    for device, allocator in enumerate(allocators):
        check_bounds(replay(snapshot, device), allocator, 0)
    # AND a third device is an error
    with pytest.raises(PytracerError, match="has no device 2: it has 2 devices, counted from 0"):
        replay(snapshot, 2)


def test_an_empty_trace() -> None:
    # GIVEN a state without any event
    allocator = used_allocator("segments", 7)
    # WHEN it is replayed
    history = replay(snapshot_of(allocator, "segments", len(allocator.events)))
    # THEN the history consists of this state
    assert {name: getattr(history.usage, name).tolist() for name in NAMES} == {
        name: [allocator.usage[-1][name]] for name in NAMES
    }
    assert len(history.blocks) == len(allocator.live())


def test_a_trace_that_contradicts_the_state() -> None:
    # GIVEN a file without some allocations, as with skip_actions=["alloc"]
    allocator = Allocator(Rules())
    kept = allocator.malloc(100)
    allocator.free(allocator.malloc(5000))
    allocator.malloc(6000)
    for at in (5, 2):
        del allocator.events[at]
    snapshot = snapshot_of(allocator, "segments")
    # WHEN it is replayed
    with pytest.raises(ContradictionError) as raised:
        replay(snapshot)
    # THEN the error names the last contradicting event, the file and the remedy
    message = str(raised.value)
    address = kept + 512
    assert f"event 3, free_completed of 5000 bytes at {address:#x}: another block is" in message
    assert message.startswith("a.pickle: replaying the trace of device 0 ")
    assert "skip_actions" in message


@pytest.mark.parametrize("path", sorted(GOLDEN.rglob("*.pickle")), ids=lambda path: path.stem)
def test_golden_files(path: Path) -> None:
    # GIVEN a file that a released version of pytracer or torch wrote
    snapshot = read(path)
    for device in range(len(snapshot.traces)):
        # WHEN it is replayed
        history = replay(snapshot, device)
        # THEN the last level equals the state
        on_device = snapshot.segments.device == device
        blocks = snapshot.blocks
        active_now = on_device[blocks.segment] & (blocks.state != INACTIVE)
        allocated_now = on_device[blocks.segment] & (blocks.state == ALLOCATED)
        usage = history.usage
        assert usage.active_bytes[-1] == blocks.size_bytes[active_now].sum()
        assert usage.requested_bytes[-1] == blocks.requested_bytes[active_now].sum()
        assert usage.allocated_bytes[-1] == blocks.size_bytes[allocated_now].sum()
        assert usage.reserved_bytes[-1] == snapshot.segments.size_bytes[on_device].sum()
        assert history.exact_from == 0
        assert (history.blocks.alloc_event[history.blocks.alloc_event >= 0]).tolist() == (
            np.flatnonzero(snapshot.traces[device].action == ALLOC).tolist()
        )
