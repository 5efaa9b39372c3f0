"""The history of a device's memory, replayed from the trace and the final state.

A trace is a ring that loses its oldest events. The segments and blocks, which were read when the
snapshot was taken, are complete. So `replay` first undoes the trace from its end, event by event,
which gives the state before the trace. Then it runs the trace forward with each block at its
address, as the allocator did.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from pytracer.analysis.allocator_rules import SMALL_BYTES, allocator_rules
from pytracer.errors import PytracerError
from pytracer.reading import _reader
from pytracer.reading.snapshot import PENDING_FREE, Column, Snapshot, Trace, compress_constant
from pytracer.text import BriefRepr

Blocks = TypeVar("Blocks", bound="Lifetimes")


class ContradictionError(PytracerError):
    """The trace does not lead to the final state: the file lacks events that changed it."""


@dataclass(frozen=True, eq=False)
class Usage:
    """The usage of a device's memory: columns with one entry more than the trace has events.

    Entry 0 is the usage before the first event, entry i + 1 the usage after event i. Names and
    meanings are those of `torch.cuda.memory_stats()`: the `current` values of `all` pools.
    """

    requested_bytes: Column  # int64, the bytes that the program requested for the active blocks
    # int64, the bytes of the blocks that the program holds, as the allocator rounded them.
    allocated_bytes: Column
    active_bytes: Column  # int64, `allocated_bytes` and the blocks whose free waits for a stream
    reserved_bytes: Column  # int64, the bytes of the segments
    # int64, the bytes of free blocks in segments that are in use, without expandable segments.
    inactive_split_bytes: Column
    largest_free_bytes: Column  # int64, the size of the largest free block
    free_squares: Column  # float64, the sum of the squares of the free blocks' sizes
    segments: Column  # int64, the number of segments


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Every block that existed during the trace: columns of equal length, sorted by `alloc_event`.

    Attributes:
        address, stream: int64.
        size_bytes: int64, the size that the allocator gave the block, or the smallest size that it
            can have given where `is_sized` is False.
        requested_bytes: int64, the size that the program requested.
        pool, stack, user_metadata: uint32, columns of the allocation's event. They are 0 for blocks
            older than the trace, except a `stack` that the file has with the block or its free.
        birth_step: int64, the step of the allocation, of blocks that are older than the trace or
            still exist at the end, as in `Blocks` of the snapshot; 0: unknown.
        alloc_event: int32, the event that allocated the block; -1 if it is older than the trace.
        free_requested_event, free_event: int32, the event by which the program freed the block, and
            the event after which its memory could serve another allocation. -1 is before the trace,
            the number of events is after it.
        is_sized: bool, whether `size_bytes` is exact.
    """

    address: Column
    stream: Column
    size_bytes: Column
    requested_bytes: Column
    pool: Column
    stack: Column
    user_metadata: Column
    birth_step: Column
    alloc_event: Column
    free_requested_event: Column
    free_event: Column
    is_sized: Column

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.address)

    def at(self: Blocks, rows: Column) -> Blocks:
        """Return the blocks of these rows, or of a mask of them."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    def are_active_at(self, entry: int) -> Column:
        """Return for each block whether it is active at an entry of the usage: bool."""
        found: Column = (self.alloc_event < entry) & (self.free_event >= entry)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class History(BriefRepr):
    """The usage and the blocks of a device during a trace.

    Attributes:
        usage: The usage before the first event and after each event.
        exact_from: The first entry of `usage` from which all columns are exact. Before it some
            blocks have an unknown size (see `replay`): `requested_bytes`, `reserved_bytes` and
            `segments` are exact nevertheless; the other columns assume the smallest possible sizes.
        uncertain_bytes: int64, for each entry before `exact_from` how many more bytes may have been
            allocated or active, and how many fewer may have been free. 0: the entry is exact.
    """

    usage: Usage
    blocks: Lifetimes
    exact_from: int
    uncertain_bytes: Column

    @property
    def is_known(self) -> bool:
        """Whether the usage before the end is known: the trace leads to the final state."""
        return len(self.usage.allocated_bytes) > 0

    @property
    def peak(self) -> int | None:
        """The first entry with the most allocated bytes; None if the history is unknown."""
        return int(self.usage.allocated_bytes.argmax()) if self.is_known else None

    @property
    def has_bounds(self) -> bool:
        """Whether entries before `exact_from` are bounds; see `without_exact_entries`."""
        return self.exact_from < len(self.usage.allocated_bytes)

    @property
    def most_before_bytes(self) -> int:
        """The most bytes that can have been allocated before `exact_from`."""
        least = self.usage.allocated_bytes[: len(self.uncertain_bytes)]
        return int((least + self.uncertain_bytes).max(initial=0))

    def uncertain_at(self, first: int, last: int | None = None) -> int | None:
        """Return the most of `uncertain_bytes` at one or more entries; None without bounds."""
        found = self.uncertain_bytes[first : (last or first) + 1]
        return int(found.max(initial=0)) if self.has_bounds else None

    def without_exact_entries(self) -> "History":
        """Return the history of a file of one phase, in which no entry is exact and none a bound.

        Such a file lacks the allocations of other threads in other phases.
        """
        return replace(self, exact_from=len(self.usage.allocated_bytes))


def unknown_history() -> History:
    """Return the history of a device without one: it has no entries and no blocks."""
    nothing = np.zeros(0, np.int64)
    usage = Usage(*[nothing] * len(fields(Usage)))
    blocks = Lifetimes(*[nothing] * len(fields(Lifetimes)))
    return History(usage, blocks, 0, nothing)


def totals(begin: Column, end: Column, values: Column | int, entries: int) -> Column:
    """Return for each entry the sum of the values from `begin` to before `end`: int64."""
    change = np.zeros(entries + 1, np.int64)
    np.add.at(change, begin, values)
    np.subtract.at(change, end, values)
    found: Column = np.cumsum(change[:-1])
    return found


def missing_allocations(trace: Trace, *frees: Column) -> tuple[Column, Column]:
    """Return the stack and the step of allocations that the trace lacks; 0: unknown.

    Args:
        frees: Events that may be the free of each block, in columns of equal length.
    """
    missing, count = trace.missing, len(frees[0])
    stack, step = np.zeros(count, np.uint32), np.zeros(count, np.int64)
    for free in frees if len(missing) else ():
        row = np.minimum(np.searchsorted(missing.event, free), len(missing) - 1)
        is_told = missing.event[row] == free
        stack[is_told], step[is_told] = (
            missing.stack[row[is_told]],
            missing.birth_step[row[is_told]],
        )
    return stack, step


def replay(snapshot: Snapshot, device: int = 0) -> History:
    """Replay a device's trace against its final state.

    A trace has the requested sizes. The sizes that the allocator gave follow from its rules and
    from the free memory at the address. Blocks that still exist at the end have both sizes in the
    file. The size of another block is unknown, and `is_sized` is False, in these cases:

    - The block has more than 1 MiB, is older than the trace, and is in a segment that does not
      expand: the allocator may have left up to 1 MiB unsplit behind it. It leaves nothing behind
      smaller blocks and in expandable segments.
    - The block has more than 1 MiB and some segments of the device expand. The allocator leaves
      less unsplit while expandable segments are on, and the file does not say when they were
      switched. A switch on and off again is not noticed if neither the trace nor the state has an
      expandable segment.
    - Blocks at the end have other sizes than the rules give: settings were changed, are not in the
      file (torch_npu writes none), or the pool does not split blocks.
    - The file does not show whether the NPU's allocator padded requests, as it does before CANN
      9.1.0.

    As in `memory_stats()`, `segments` does not count expandable segments. Their pieces count in
    `reserved_bytes` only.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The device's index in the file.

    Raises:
        PytracerError: The snapshot has no such device.
        ContradictionError: The trace does not lead to the state. The file lacks events, as with
            `skip_actions` of torch's recorder; or other threads allocated between torch's reading
            of the trace and of the state. A file of one phase (`discrete`) lacks the events of
            other threads in other phases. That is detected only where something does not fit;
            otherwise the usage before the end is wrong by those events.
    """
    if not 0 <= device < len(snapshot.traces):
        raise PytracerError(
            f"{snapshot.path} has no device {device}: it has {len(snapshot.traces)} devices, "
            "counted from 0"
        )
    trace = snapshot.traces[device]
    segments = np.flatnonzero(snapshot.segments.device == device)
    blocks = snapshot.blocks_in_use(device)
    state = {
        "segment_address": snapshot.segments.address[segments],
        "segment_size": snapshot.segments.size_bytes[segments],
        "is_expandable": snapshot.segments.is_expandable[segments],
        "block_address": snapshot.blocks.address[blocks],
        "block_size": snapshot.blocks.size_bytes[blocks],
        "requested": snapshot.blocks.requested_bytes[blocks],
        "is_pending": snapshot.blocks.state[blocks] == PENDING_FREE,
    }
    rules = allocator_rules(snapshot, device, segments, blocks)
    try:
        usage, lives, exact_from = _reader.replay(
            trace.action, trace.address, trace.size_bytes, state, rules
        )
    except _reader.ContradictionError as error:
        raise ContradictionError(
            f"{snapshot.path}: replaying the trace of device {device} does not give the final "
            f"state ({error}), so the usage over time is unknown. Files that lack events "
            "(one-phase files, torch snapshots with skip_actions) cannot be replayed. For other "
            "files, take the snapshot again"
        ) from None
    lifetimes = _lifetimes(snapshot, device, trace, blocks, lives)
    uncertain = _uncertain(Usage(*usage), lifetimes, exact_from, rules)
    return History(Usage(*map(compress_constant, usage)), lifetimes, exact_from, uncertain)


def _uncertain(usage: Usage, blocks: Lifetimes, exact_from: int, rules: dict[str, Any]) -> Column:
    """Return `History.uncertain_bytes`.

    The allocator leaves up to 1 MiB unsplit behind a block, unless the block has `max_split_bytes`
    or more, or follows rules that are not in the file: then the bound is the reserved memory. A
    block that is older than the trace ends at the latest where the next such block begins.
    """
    found = np.flatnonzero(~blocks.is_sized)
    begin, end = blocks.alloc_event[found] + 1, blocks.free_event[found] + 1  # entries
    size, address = blocks.size_bytes[found], blocks.address[found]
    is_older = begin == 0
    older = np.append(np.sort(blocks.address[blocks.alloc_event < 0]), np.iinfo(np.int64).max)
    gap = older[np.searchsorted(older, address, "right")] - (address + size)
    excess = np.where(is_older, np.minimum(gap, SMALL_BYTES), SMALL_BYTES)
    is_bounded = (size < min(rules["max_split_bytes"], 2**62)) & (
        rules["are_known"] and rules["is_padding_known"]
    )
    is_bounded |= is_older & (gap <= SMALL_BYTES)

    free = usage.reserved_bytes[:exact_from] - usage.active_bytes[:exact_from]
    more = totals(begin[is_bounded], end[is_bounded], excess[is_bounded], exact_from)
    unbounded = totals(begin[~is_bounded], end[~is_bounded], 1, exact_from)
    return np.where(unbounded > 0, free, np.minimum(more, free))


def _lifetimes(
    snapshot: Snapshot, device: int, trace: Trace, blocks: Column, lives: tuple[Column, ...]
) -> Lifetimes:
    address, size, requested, alloc, free_requested, free, is_sized, state_block = lives
    in_trace = np.flatnonzero(alloc >= 0)
    in_end = np.flatnonzero(state_block >= 0)
    older_freed = np.flatnonzero((alloc < 0) & (state_block < 0))
    state_blocks = blocks[state_block[in_end]]
    missing_stack, birth_step = missing_allocations(trace, free_requested, free)

    def merged(of_trace: Column, of_state: Column | None = None) -> Column:
        column = np.zeros(len(address), of_trace.dtype)
        if of_state is not None:
            column[in_end] = of_state
        column[in_trace] = of_trace[alloc[in_trace]]
        return column

    stream = merged(trace.stream, snapshot.segments.stream[snapshot.blocks.segment[state_blocks]])
    stream[older_freed] = trace.stream[free[older_freed]]
    stack = merged(trace.stack, snapshot.blocks.stack[state_blocks])
    birth_step[in_end] = snapshot.blocks.birth_step[state_blocks]
    return Lifetimes(
        address=address,
        stream=stream,
        size_bytes=size,
        requested_bytes=requested,
        pool=merged(trace.pool),
        stack=np.where(stack == 0, missing_stack, stack),
        user_metadata=merged(trace.user_metadata),
        birth_step=birth_step,
        alloc_event=alloc,
        free_requested_event=free_requested,
        free_event=free,
        is_sized=is_sized,
    )
