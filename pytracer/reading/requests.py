"""What a program asked of a device's allocator, so that another allocator can be asked the same."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.about import about_device, only_phase, told_number, told_settings
from pytracer.reading.allocator_rules import PADDING_BYTES
from pytracer.reading.counts import count_retries
from pytracer.reading.devices import backend, device_name, has_events
from pytracer.reading.history import History, Lifetimes, replay
from pytracer.reading.snapshot import (
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Column,
    Snapshot,
    Trace,
)

(
    ALLOCATE,
    FREE,
    LEAVE,
    FAIL,
    RELEASE_POOL,
    EMPTY_CACHE,
) = range(6)
"""What was asked, in `Requests.kind`: see there."""

ASKED = ("kind", "block", "size_bytes", "stream", "pool")
"""The columns of `Requests` that say what was asked."""


@dataclass(frozen=True, eq=False)
class Requests:
    """What was asked, in order; columns of equal length.

    Attributes:
        kind: uint8. `ALLOCATE`: memory. `FREE`: the block may serve another request from here on.
            `LEAVE`: the program does not need the block any more, but its free waits for a stream
            until its `FREE`. `FAIL`: memory, of which there was not enough. `RELEASE_POOL`: a pool
            that is empty is given up. `EMPTY_CACHE`: all cached memory is given back.
        block: int64, the block that is allocated, left or freed, counted from 0 in the order of
            allocations; -1: none.
        size_bytes: int64, what `ALLOCATE` and `FAIL` ask for.
        stream: int64, of these: 0 is the default stream, others are counted from 1.
        pool: int64, of these and `RELEASE_POOL`: 0 is the default pool, others are counted from 1.
        event: int64, the event of the trace that tells of it; -1: it is older than the trace.
        older_blocks: How many blocks are older than the trace, and come first. What there was
            beside them, cached segments and splits, is not asked for.
        older_freed: How many of these are freed in the trace.
        given_back: How often memory was given back just before more was taken, which was the
            program's doing (`EMPTY_CACHE`) only if it was not the allocator's: the file does not
            tell.
        streams, pools: How many there are.
    """

    kind: Column
    block: Column
    size_bytes: Column
    stream: Column
    pool: Column
    event: Column
    older_blocks: int
    older_freed: int
    given_back: int
    streams: int
    pools: int

    def __len__(self) -> int:
        """How many there are."""
        return len(self.kind)


@dataclass(frozen=True, eq=False)
class Recording:
    """What a snapshot tells of one device, for a replay.

    Attributes:
        name: The device, as in "cuda:0".
        settings: Of its allocator, as the allocator's variable has them, as far as the file tells.
        were_changed: Whether the trace shows that expandable segments were switched meanwhile.
        limit_bytes: How much it could have reserved; None: the file does not tell.
        starts_empty: Whether nothing was reserved before the trace: only then can a replay be
            exact.
        trace: Its events.
        history: Its levels.
        requests: What was asked of it.
    """

    name: str
    settings: str
    were_changed: bool
    limit_bytes: int | None
    starts_empty: bool
    trace: Trace
    history: History
    requests: Requests


def recording_of(snapshot: Snapshot, device: int | None = None) -> Recording:
    """What is needed to replay a device.

    Args:
        snapshot: A snapshot, as `load` returns it.
        device: The device's index in the file; None: the accelerator with most events.

    Raises:
        PytracerError: The snapshot has no such device, it is the CPU, nothing was asked of it, the
            file is of one phase, or its trace does not lead to its state.
    """
    device = _busiest(snapshot) if device is None else device
    if not 0 <= device < len(snapshot.traces):
        raise PytracerError(
            f"{snapshot.path}: device {device}: this snapshot has {len(snapshot.traces)}, counted "
            "from 0"
        )
    name = device_name(snapshot, device)
    if backend(snapshot, device) == "cpu":
        raise PytracerError(
            f"{snapshot.path}: device {device} is the CPU, whose allocator has no cache and no "
            "settings to be compared; give the snapshot of an accelerator"
        )
    if (phase := only_phase(snapshot)) is not None:
        raise PytracerError(
            f"{snapshot.path} has the events of the phase {phase} alone, without what others "
            "allocated meanwhile; give the file of its step"
        )
    trace = snapshot.traces[device]
    history = replay(snapshot, device)
    limit_bytes = _limit_bytes(snapshot, device, history)
    requests = _requests(snapshot, device, history, limit_bytes)
    if not np.any((requests.kind == ALLOCATE) & (requests.event >= 0)):
        raise PytracerError(
            f"{snapshot.path}: {name} has no allocation in its trace, so there is nothing to "
            f"replay ({len(trace)} events); record while the program allocates"
        )
    return Recording(
        name=name,
        settings=_settings(snapshot, trace),
        were_changed=_were_changed(trace),
        limit_bytes=limit_bytes,
        starts_empty=int(history.levels.reserved_bytes[0]) == 0,
        trace=trace,
        history=history,
        requests=requests,
    )


def _busiest(snapshot: Snapshot) -> int:
    used = [device for device, trace in enumerate(snapshot.traces) if has_events(trace)]
    accelerators = [device for device in used if backend(snapshot, device) != "cpu"]
    if not accelerators:
        raise PytracerError(
            f"{snapshot.path} has no events of an accelerator: nothing happened there, or it was "
            'not recorded (device="cuda" and "npu" do)'
        )
    return max(accelerators, key=lambda device: len(snapshot.traces[device]))


def _settings(snapshot: Snapshot, trace: Trace) -> str:
    """As the variable has them; where that is not told, what is known of expandable segments."""
    text = told_settings(snapshot) or ""
    expands = snapshot.allocator_settings.get("expandable_segments")
    if not isinstance(expands, bool):
        expands = bool(np.any(trace.action == SEGMENT_MAP))
    if re.search(r"(^|,)\s*expandable_segments\s*:", text) or not expands:
        return text
    return ",".join(filter(None, (text, "expandable_segments:True")))


def _were_changed(trace: Trace) -> bool:
    """A private pool's segments are of the same kind as others."""
    kinds = [np.any(trace.action == action) for action in (SEGMENT_ALLOC, SEGMENT_MAP)]
    return all(kinds)


def _limit_bytes(snapshot: Snapshot, device: int, history: History) -> int | None:
    """What the allocator held and what was free, when memory ran out or the file was written."""
    limits = []
    trace = snapshot.traces[device]
    ooms = np.flatnonzero(trace.action == OOM)
    if len(ooms) > 0:
        last = ooms[-1]
        limits.append(int(history.levels.reserved_bytes[last] + trace.address[last]))
    about = about_device(snapshot, device)
    free, reserved = told_number(about, "free_bytes"), told_number(about, "reserved_bytes")
    if not limits and free is not None and reserved is not None:
        limits.append(free + reserved)
    statistics, total = about.get("statistics"), told_number(about, "total_bytes")
    fraction = statistics.get("memory_fraction") if isinstance(statistics, dict) else None
    if total is not None and isinstance(fraction, float) and 0 < fraction < 1:
        limits.append(round(fraction * total))
    oom = snapshot.about.get("oom")
    if isinstance(oom, dict) and oom.get("device") == device:
        allowed = told_number(oom, "total_bytes")  # less than there is under a memory fraction
        limits += [] if allowed is None else [allowed]
    limit = min(limits, default=0)
    return limit if limit > 0 else None


def _requests(
    snapshot: Snapshot, device: int, history: History, limit_bytes: int | None
) -> Requests:
    trace, blocks = snapshot.traces[device], history.blocks
    events = len(trace)
    is_older = blocks.alloc_event < 0
    # Blocks older than the trace have no order but that of their addresses.
    order = np.lexsort((blocks.address, np.where(is_older, -1, blocks.alloc_event)))
    number = np.empty(len(blocks), np.int64)
    number[order] = np.arange(len(blocks))
    pool = _pools(snapshot, device, blocks)

    freed = np.flatnonzero((blocks.free_event >= 0) & (blocks.free_event < events))
    # A free that is complete at once is one event after it was asked for.
    waits = blocks.free_event - blocks.free_requested_event > 1
    is_left = waits & (blocks.free_requested_event < events)
    is_left &= (blocks.free_requested_event >= 0) | (is_older & (blocks.free_event > 0))
    has_requests = np.any(blocks.free_requested_event >= 0)
    left = np.flatnonzero(is_left) if has_requests else np.zeros(0, np.int64)
    (failed,) = np.nonzero(trace.action == OOM)
    padding = PADDING_BYTES if backend(snapshot, device) == "npu" else 0

    parts = [
        _part(
            ALLOCATE,
            blocks.alloc_event[order],
            block=number[order],
            size_bytes=blocks.requested_bytes[order],
            stream=blocks.stream[order],
            pool=pool[order],
        ),
        _part(LEAVE, blocks.free_requested_event[left], block=number[left]),
        _part(FREE, blocks.free_event[freed], block=number[freed]),
        _part(
            FAIL,
            failed,
            block=np.full(len(failed), -1),
            size_bytes=trace.size_bytes[failed] - padding,  # it tells of what was rounded up
            stream=trace.stream[failed],
            pool=trace.pool[failed],
        ),
        *_given_back(trace, history, limit_bytes),
    ]
    columns = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    sequence = np.argsort(columns["event"], kind="stable")
    columns = {name: column[sequence] for name, column in columns.items()}
    streams = np.unique(np.append(columns["stream"], 0))
    # The default one is 0, wherever it is among the handles.
    rank = np.searchsorted(streams, columns["stream"])
    zero = np.searchsorted(streams, 0)
    columns["stream"] = np.where(rank == zero, 0, rank + (rank < zero))
    pools, columns["pool"] = np.unique(np.append(columns["pool"], 0), return_inverse=True)
    columns["pool"] = columns["pool"][:-1]
    return Requests(
        **columns,
        older_blocks=int(np.count_nonzero(is_older)),
        older_freed=int(np.count_nonzero(is_older[freed])),
        given_back=0 if limit_bytes is not None else count_retries(trace) - len(failed),
        streams=len(streams),
        pools=len(pools),
    )


def _pools(snapshot: Snapshot, device: int, blocks: Lifetimes) -> Column:
    """Each block's; of those older than the trace from their free, or their segment in the end."""
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


def _part(kind: int, event: Column, **columns: Column) -> dict[str, Column]:
    """Requests of one kind; columns that are not given are 0."""
    names = ("block", "size_bytes", "stream", "pool")
    filled = {name: columns.get(name, np.zeros(len(event), np.int64)) for name in names}
    return {"kind": np.full(len(event), kind, np.uint8), "event": event.astype(np.int64), **filled}


def _given_back(
    trace: Trace, history: History, limit_bytes: int | None
) -> Iterator[dict[str, Column]]:
    """Where the program, and not an allocation in need, had memory given back to the device."""
    gives = np.isin(trace.action, (SEGMENT_FREE, SEGMENT_UNMAP))
    edges = np.flatnonzero(np.diff(gives, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]  # of runs of such events
    # An allocation that finds no memory has the cache given back, and then gets a segment or fails.
    # If what it needed was there, the program did that before.
    following = np.minimum(ends, len(trace) - 1)
    is_followed = ends < len(trace)
    takes = is_followed & np.isin(trace.action[following], (SEGMENT_ALLOC, SEGMENT_MAP))
    fails = is_followed & (trace.action[following] == OOM)
    needed = history.levels.reserved_bytes[begins] + trace.size_bytes[following]
    fits = True if limit_bytes is None else needed <= limit_bytes
    is_by_program = ~fails & (~takes | fits)
    (given,) = np.nonzero(gives)
    run = np.searchsorted(begins, given, side="right") - 1
    given, run = given[is_by_program[run]], run[is_by_program[run]]
    # Each run gives back of one or more pools.
    event, pool = np.unique(np.stack((begins[run], trace.pool[given])), axis=1).astype(np.int64)
    for kind, chosen in ((RELEASE_POOL, pool != 0), (EMPTY_CACHE, pool == 0)):
        nothing = np.full(np.count_nonzero(chosen), -1)
        yield _part(kind, event[chosen], block=nothing, pool=pool[chosen])
