"""What the trace and the final state of a device tell together.

A trace is a ring that forgets its beginning; the segments and blocks, taken at the moment of the
snapshot, are complete. So the trace is undone from the end, event by event, which gives what was
there before it began; then it is run forward with each block at its address, as the allocator did.
"""

from dataclasses import dataclass

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading import _reader
from pytracer.reading.allocator_rules import allocator_rules
from pytracer.reading.snapshot import INACTIVE, PENDING_FREE, Column, Snapshot, Trace, lean


class ContradictionError(PytracerError):
    """The trace does not lead to the state: events are missing that changed it."""


@dataclass(frozen=True, eq=False)
class Levels:
    """How full the device's allocator was; one entry more than there are events.

    Entry 0 is before the first event, entry i + 1 after event i. The names and meanings are those
    of `torch.cuda.memory_stats()`, of `all` pools, `current`.

    Attributes:
        requested_bytes: int64, what the program asked for, of the active blocks.
        allocated_bytes: int64, of the blocks that the program has, as the allocator rounded them.
        active_bytes: int64, of these and the blocks whose free waits for a stream.
        reserved_bytes: int64, of the segments.
        inactive_split_bytes: int64, of free blocks in segments that are in use (not expandable).
        largest_free_bytes: int64, of the largest free block.
        free_squares: float64, the sum of the squares of the free blocks' bytes.
        segments: int64, how many there are.
    """

    requested_bytes: Column
    allocated_bytes: Column
    active_bytes: Column
    reserved_bytes: Column
    inactive_split_bytes: Column
    largest_free_bytes: Column
    free_squares: Column
    segments: Column


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Every block that lived in the trace's time; columns of equal length, by `alloc_event`.

    Attributes:
        address, stream: int64.
        size_bytes: int64, what the allocator gave; where that is not known (`is_sized` is False),
            what it gives at least.
        requested_bytes: int64, what the program asked for.
        pool, stack, user_metadata: uint32, of the allocation, as in the trace. 0 where it is older
            than the trace, but `stack` if the block is still there in the end.
        alloc_event: int32, the event that allocated it; -1: it is older than the trace.
        free_requested_event, free_event: int32, when the program freed it and when it could serve
            another allocation; the number of events: not in this trace. -1: before it.
        is_sized: bool, whether `size_bytes` is exact.
    """

    address: Column
    stream: Column
    size_bytes: Column
    requested_bytes: Column
    pool: Column
    stack: Column
    user_metadata: Column
    alloc_event: Column
    free_requested_event: Column
    free_event: Column
    is_sized: Column

    def __len__(self) -> int:
        """How many there are."""
        return len(self.address)


@dataclass(frozen=True, eq=False)
class History:
    """The device's levels and blocks.

    Attributes:
        levels: One entry more than there are events.
        blocks: Every block.
        exact_from: The first entry of `levels` from which all are exact. Before it there are blocks
            whose size is not known (`replay` says when): `requested_bytes`, `reserved_bytes` and
            `segments` are exact all the same, the others of the least that these blocks can have.
    """

    levels: Levels
    blocks: Lifetimes
    exact_from: int


def replay(snapshot: Snapshot, device: int = 0) -> History:
    """Runs a device's trace against its final state.

    A trace has what was requested; what the allocator gave is derived by its rules, from what was
    free at the place. Blocks that are there in the end tell both, so theirs is exact. Of others the
    size is not known, and `is_sized` False, where

    - a block of more than 1 MiB is older than the trace, in a segment that does not expand: up to
      1 MiB may have been left unsplit behind it. (Where nothing ever began, there is no telling.
      Behind smaller blocks, and in segments that expand, nothing is left.)
    - such a block is of a device some of whose segments expand: while that is on, less is left
      unsplit, and when it was switched is not told. (Switched on and off again with no such segment
      in the trace or the state, it is not noticed.)
    - blocks in the end have other sizes than the rules give: by settings that were changed or are
      not in the file (torch_npu writes none), or of a pool that does not split.
    - nothing tells whether the NPU's allocator padded requests, as it does before CANN 9.1.0.

    `segments` are those that do not expand, as in `memory_stats()`: pieces of the others come and
    go in `reserved_bytes` alone. torch's recorder reads the trace and then the state: what other
    threads do between is a contradiction.

    Args:
        snapshot: A snapshot, as `load` returns it.
        device: The device's index in the file.

    Raises:
        PytracerError: The snapshot has no such device.
        ContradictionError: The trace does not lead to the state. So it is in files that leave
            events out, as of torch's recorder with `skip_actions`. A file of one phase (`discrete`)
            leaves out what other threads did meanwhile in others: that is noticed only where
            something does not fit, else all levels before the end are wrong by it.
    """
    if not 0 <= device < len(snapshot.traces):
        raise PytracerError(
            f"device {device}: this snapshot has {len(snapshot.traces)}, counted from 0"
        )
    trace = snapshot.traces[device]
    segments = np.flatnonzero(snapshot.segments.device == device)
    active = snapshot.blocks.state != INACTIVE
    blocks = np.flatnonzero(active & (snapshot.segments.device[snapshot.blocks.segment] == device))
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
        levels, lives, exact_from = _reader.replay(
            trace.action, trace.address, trace.size_bytes, state, rules
        )
    except _reader.ContradictionError as error:
        raise ContradictionError(
            f"{snapshot.path}: the trace of device {device} does not lead to the state in the end "
            f"({error}); files that leave events out (of one phase, or of torch's recorder with "
            "skip_actions) cannot be replayed, else take the snapshot again"
        ) from None
    return History(
        Levels(*map(lean, levels)), _lifetimes(snapshot, device, trace, blocks, lives), exact_from
    )


def _lifetimes(
    snapshot: Snapshot, device: int, trace: Trace, blocks: Column, lives: tuple[Column, ...]
) -> Lifetimes:
    """With what the trace and the state tell of each block beside."""
    address, size, requested, alloc, free_requested, free, is_sized, state_block = lives
    in_trace = np.flatnonzero(alloc >= 0)
    in_end = np.flatnonzero(state_block >= 0)
    older_freed = np.flatnonzero((alloc < 0) & (state_block < 0))
    state_blocks = blocks[state_block[in_end]]

    def told(of_trace: Column, of_state: Column | None = None) -> Column:
        column = np.zeros(len(address), of_trace.dtype)
        if of_state is not None:
            column[in_end] = of_state
        column[in_trace] = of_trace[alloc[in_trace]]
        return column

    stream = told(trace.stream, snapshot.segments.stream[snapshot.blocks.segment[state_blocks]])
    stream[older_freed] = trace.stream[free[older_freed]]
    return Lifetimes(
        address=address,
        stream=stream,
        size_bytes=size,
        requested_bytes=requested,
        pool=told(trace.pool),
        stack=told(trace.stack, snapshot.blocks.stack[state_blocks]),
        user_metadata=told(trace.user_metadata),
        alloc_event=alloc,
        free_requested_event=free_requested,
        free_event=free,
        is_sized=is_sized,
    )
