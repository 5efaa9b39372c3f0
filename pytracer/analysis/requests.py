"""The requests of a program to a device's allocator, in a form that a simulation can repeat."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pytracer.analysis.allocator_rules import PADDING_BYTES
from pytracer.analysis.history import History, Lifetimes, replay
from pytracer.analysis.memory_at_start import Start, start_of
from pytracer.analysis.ooms import count_retries, fraction_bytes_of, limit_bytes_of
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import (
    GIVES_MEMORY,
    OOM,
    SEGMENT_MAP,
    TAKES_MEMORY,
    Column,
    Snapshot,
    Trace,
    has_events,
)

ALLOCATE, FREE, LEAVE, FAIL, RELEASE_POOL, EMPTY_CACHE = range(6)
"""The values of `Requests.kind`, described there."""

REQUEST_COLUMNS = ("kind", "block", "size_bytes", "stream", "pool")
"""The columns of `Requests` that a simulation needs."""


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests to an allocator, in order: columns of equal length.

    Attributes:
        kind: uint8. `ALLOCATE` allocates a block. `LEAVE` means that the program has freed the
            block and its free waits for a stream until the block's `FREE`. `FREE` makes the block's
            memory available for other requests. `FAIL` is an allocation for which there was not
            enough memory. `RELEASE_POOL` releases an empty pool. `EMPTY_CACHE` gives all cached
            memory back to the device.
        block: int64, the block that is allocated, left or freed, counted from 0 in the order of
            allocations; -1 for no block.
        size_bytes: int64, the requested bytes of `ALLOCATE` and `FAIL`.
        stream: int64, the stream of `ALLOCATE` and `FAIL`: 0 is the default stream, others are
            counted from 1.
        pool: int64, the pool of `ALLOCATE`, `FAIL` and `RELEASE_POOL`: 0 is the default pool,
            others are counted from 1.
        event: int64, the request's event in the trace; -1 for blocks older than the trace.
        older_blocks: The number of blocks older than the trace. Their requests come first.
        given_back: How often memory was given back just before more was taken, where the file does
            not show whether the program (`EMPTY_CACHE`) or the allocator did it.
        start: The memory at the first event, which has the blocks older than the trace; None: there
            was none, or it is unknown.
    """

    kind: Column
    block: Column
    size_bytes: Column
    stream: Column
    pool: Column
    event: Column
    older_blocks: int
    given_back: int
    start: Start | None = None

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Recording:
    """The data of one device that a simulation needs."""

    device: int
    name: str  # the device's name, as in "cuda:0"
    backend: str  # "cuda" or "npu"; "cuda" where the file does not say
    # The version of torch, or of torch_npu on an NPU, without its local part, as in "2.12.1"; None
    # if unknown.
    torch_version: str | None
    # The allocator's settings, in the form of the allocator's variable, as far as the file has
    # them.
    settings: str
    were_changed: bool  # whether the trace shows that expandable segments were switched
    # The most bytes that the allocator could have reserved; None if unknown.
    limit_bytes: int | None
    # The limit of the process (`set_per_process_memory_fraction`), if it is smaller than what the
    # device had for the allocator; None: no such limit is known.
    fraction_bytes: int | None
    starts_empty: bool  # whether nothing was reserved before the trace
    trace: Trace
    history: History
    requests: Requests

    @property
    def own_name(self) -> str:
        """The name of the recording's own settings among others that are compared with them."""
        return f"own settings ({self.settings or 'defaults'})"


def extract_recording(
    snapshot: Snapshot, device: int | None = None, history: History | None = None
) -> Recording:
    """Return the data that a simulation of a device needs.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The device's index in the file; None for the accelerator with most events.
        history: The device's history, if it is known already.

    Raises:
        PytracerError: The snapshot has no such device, the device is the CPU, it has no allocation,
            the file is of one phase, or its trace does not lead to its final state.
    """
    device = _busiest(snapshot) if device is None else device
    name = snapshot.device_name(device)
    if snapshot.backend(device) == "cpu":
        raise PytracerError(
            f"{snapshot.path}: device {device} is the CPU, whose allocator has no cache and no "
            "settings to compare: give the snapshot of an accelerator"
        )
    if device == snapshot.host_device:
        raise PytracerError(
            f"{snapshot.path}: device {device} is pinned host memory, which cannot be simulated: "
            "give the device of an accelerator"
        )
    if (phase := snapshot.metadata.only_phase) is not None:
        raise PytracerError(
            f"{snapshot.path} has only the events of the phase {phase}, without the allocations of "
            "other threads at that time, so it cannot be simulated: give the file of the step"
        )
    history = replay(snapshot, device) if history is None else history
    trace = snapshot.traces[device]
    limit_bytes = limit_bytes_of(snapshot, device, history)
    fraction_bytes = fraction_bytes_of(snapshot, device)
    settings = _settings(snapshot, trace)
    requests = _requests(snapshot, device, history, limit_bytes, settings)
    if not np.any((requests.kind == ALLOCATE) & (requests.event >= 0)):
        raise PytracerError(
            f"{snapshot.path}: {name} has no allocation in its trace ({len(trace)} events), so "
            "there is nothing to simulate: record while the program allocates"
        )
    kind = "npu" if snapshot.backend(device) == "npu" else "cuda"
    return Recording(
        device=device,
        name=name,
        backend=kind,
        torch_version=snapshot.metadata.torch_version(kind),
        settings=settings,
        were_changed=all(np.any(trace.action == action) for action in TAKES_MEMORY),
        limit_bytes=limit_bytes,
        fraction_bytes=fraction_bytes if fraction_bytes == limit_bytes else None,
        starts_empty=int(history.usage.reserved_bytes[0]) == 0,
        trace=trace,
        history=history,
        requests=requests,
    )


def _busiest(snapshot: Snapshot) -> int:
    used = [device for device, trace in enumerate(snapshot.traces) if has_events(trace)]
    accelerators = [device for device in used if snapshot.backend(device) not in ("cpu", "host")]
    if not accelerators:
        raise PytracerError(
            f"{snapshot.path} has no accelerator events: the program did not use an accelerator, "
            'or it was not recorded (record with device="cuda" or "npu")'
        )
    return max(accelerators, key=lambda device: len(snapshot.traces[device]))


def _settings(snapshot: Snapshot, trace: Trace) -> str:
    """Return the settings as the variable has them, with expandable segments if these show."""
    text = snapshot.settings_text or ""
    expands = snapshot.allocator_settings.get("expandable_segments")
    if not isinstance(expands, bool):
        expands = bool(np.any(trace.action == SEGMENT_MAP))
    if re.search(r"(^|,)\s*expandable_segments\s*:", text) or not expands:
        return text
    return ",".join(filter(None, (text, "expandable_segments:True")))


def block_order(blocks: Lifetimes) -> Column:
    """Return the blocks of a history in the order of `Requests.block`: int64.

    The order of blocks older than the trace is unknown: they are sorted by address.
    """
    is_older = blocks.alloc_event < 0
    return np.lexsort((blocks.address, np.where(is_older, -1, blocks.alloc_event)))


def _requests(
    snapshot: Snapshot, device: int, history: History, limit_bytes: int | None, settings: str
) -> Requests:
    trace, blocks = snapshot.traces[device], history.blocks.at(block_order(history.blocks))
    events, number, pool = len(trace), np.arange(len(blocks)), _pools(snapshot, device, blocks)
    is_older = blocks.alloc_event < 0

    freed = np.flatnonzero((blocks.free_event >= 0) & (blocks.free_event < events))
    # A free that does not wait is completed by the event after its request.
    waits = blocks.free_event - blocks.free_requested_event > 1
    is_left = waits & (blocks.free_requested_event < events)
    is_left &= (blocks.free_requested_event >= 0) | (is_older & (blocks.free_event > 0))
    has_requests = np.any(blocks.free_requested_event >= 0)
    left = np.flatnonzero(is_left) if has_requests else np.zeros(0, np.int64)
    (failed,) = np.nonzero(trace.action == OOM)
    # The event has the padded size.
    padding = PADDING_BYTES if snapshot.backend(device) == "npu" else 0
    missing = trace.size_bytes[failed] - padding

    # The kind, the event, the block, the size, the stream and the pool.
    parts: list[tuple[Any, ...]] = [
        (ALLOCATE, blocks.alloc_event, number, blocks.requested_bytes, blocks.stream, pool),
        (LEAVE, blocks.free_requested_event[left], left, 0, 0, 0),
        (FREE, blocks.free_event[freed], freed, 0, 0, 0),
        (FAIL, failed, -1, missing, trace.stream[failed], trace.pool[failed]),
        *_given_back(trace, history, limit_bytes),
    ]
    rows = np.concatenate([np.stack(np.broadcast_arrays(*part)) for part in parts], axis=1)
    rows = np.take(rows, np.argsort(rows[1], kind="stable"), axis=1)
    kind, event, block, size_bytes, stream, pool = rows
    start = start_of(snapshot, device, history, settings)
    nothing = np.zeros(0, np.int64)
    starts = (nothing, nothing) if start is None else (start.stream, start.pool)
    stream, its_stream = _numbered(stream, starts[0])
    pool, its_pool = _numbered(pool, starts[1])
    if start is not None:
        start = replace(start, stream=its_stream, pool=its_pool)
    return Requests(
        kind=kind.astype(np.uint8),
        block=block,
        size_bytes=size_bytes,
        stream=stream,
        pool=pool,
        event=event,
        older_blocks=int(np.count_nonzero(is_older)),
        given_back=0 if limit_bytes is not None else count_retries(trace) - len(failed),
        start=start,
    )


def _numbered(values: Column, others: Column) -> tuple[Column, Column]:
    """Return two columns of values as numbers from 0.

    The value 0, of the default stream or pool, gets the number 0, wherever it is in their order.
    """
    found = np.unique(np.concatenate((values, others, [0])))
    zero = np.searchsorted(found, 0)

    def numbers(column: Column) -> Column:
        rank = np.searchsorted(found, column)
        renumbered: Column = np.where(rank == zero, 0, rank + (rank < zero))
        return renumbered

    return numbers(values), numbers(others)


def _pools(snapshot: Snapshot, device: int, blocks: Lifetimes) -> Column:
    """Return each block's pool; blocks older than the trace have it from their free or segment."""
    pool = blocks.pool.astype(np.int64)
    trace, segments = snapshot.traces[device], snapshot.segments
    older = np.flatnonzero(blocks.alloc_event < 0)
    freed = older[blocks.free_event[older] < len(trace)]
    pool[freed] = trace.pool[blocks.free_event[freed]]
    held = older[blocks.free_event[older] >= len(trace)]
    (own,) = np.nonzero(segments.device == device)
    own = own[np.argsort(segments.address[own])]
    place = np.searchsorted(segments.address[own], blocks.address[held], side="right") - 1
    pool[held] = segments.pool[own[place]]
    return pool


def _given_back(
    trace: Trace, history: History, limit_bytes: int | None
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of where the program, and not an allocation, gave memory to the device."""
    gives = np.isin(trace.action, GIVES_MEMORY)
    edges = np.flatnonzero(np.diff(gives, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]  # of runs of such events
    # An allocation that finds no memory gives the cache back, and then gets a segment or fails. If
    # the limit left enough memory for it, the program had given the cache back before.
    following = np.minimum(ends, len(trace) - 1)
    is_followed = ends < len(trace)
    takes = is_followed & np.isin(trace.action[following], TAKES_MEMORY)
    fails = is_followed & (trace.action[following] == OOM)
    needed = history.usage.reserved_bytes[begins] + trace.size_bytes[following]
    fits = True if limit_bytes is None else needed <= limit_bytes
    is_by_program = ~fails & (~takes | fits)
    (given,) = np.nonzero(gives)
    run = np.searchsorted(begins, given, side="right") - 1
    given, run = given[is_by_program[run]], run[is_by_program[run]]
    # Each run gives back memory of one or more pools.
    event, pool = np.unique(np.stack((begins[run], trace.pool[given])), axis=1).astype(np.int64)
    for kind, chosen in ((RELEASE_POOL, pool != 0), (EMPTY_CACHE, pool == 0)):
        yield kind, event[chosen], -1, 0, 0, pool[chosen]
