"""The usage that a trace alone gives, for files whose trace does not lead to their final state."""

import numpy as np

from pytracer.analysis.history import (
    History,
    Lifetimes,
    Usage,
    missing_allocations,
    totals,
    unknown_history,
)
from pytracer.reading.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GIVES_MEMORY,
    TAKES_MEMORY,
    Column,
    Snapshot,
)


def sum_trace(snapshot: Snapshot, device: int) -> History:
    """Sum a device's allocations and frees, without its segments and blocks at the end.

    Blocks have the sizes of the trace, and blocks that the trace does not allocate or free are
    missing. The trace says nothing about segments, so that `reserved_bytes` is `active_bytes`, and
    nothing is free. No entry is exact, and none is a bound.

    Returns:
        An unknown history if the sum would be no usage: the trace has segments, and then leads to
        the state unless events are missing; it has no allocations, or no frees; two allocations
        follow each other at one address, so that a free is missing; the file is of one phase, and
        lacks other threads' frees; or more is active at the end than the trace ever sums up to.
    """
    trace = snapshot.traces[device]
    actions = {*np.unique(trace.action).tolist()}
    if snapshot.metadata.only_phase is not None or not {ALLOC, FREE_COMPLETED} <= actions:
        return unknown_history()
    if not actions.isdisjoint(TAKES_MEMORY + GIVES_MEMORY):
        return unknown_history()
    events = np.flatnonzero(np.isin(trace.action, (ALLOC, FREE_REQUESTED, FREE_COMPLETED)))
    events = events[np.argsort(trace.address[events], kind="stable")]  # of an address in order
    action, address = trace.action[events], trace.address[events]
    size_bytes = trace.size_bytes[events]
    is_same = address[1:] == address[:-1]
    is_first = np.append(True, ~is_same | (action[:-1] == FREE_COMPLETED))  # events of a block
    is_valid = (action[1:] > action[:-1]) & (size_bytes[1:] == size_bytes[:-1])
    is_reused = (action[:-1] == FREE_COMPLETED) & (action[1:] == ALLOC)
    if (is_same & ~is_valid & ~is_reused).any():
        return unknown_history()
    if size_bytes.min() < 0 or size_bytes.sum(dtype=np.float64) >= 2**62:
        return unknown_history()
    found = _history(snapshot, device, events, np.cumsum(is_first) - 1)
    at_end = snapshot.blocks.size_bytes[snapshot.blocks_in_use(device)].sum()
    return found if int(found.usage.active_bytes.max()) >= at_end else unknown_history()


def _history(snapshot: Snapshot, device: int, events: Column, block: Column) -> History:
    """Return the history; `block`: the number of the block of each of the events."""
    trace = snapshot.traces[device]
    count, entries = int(block[-1]) + 1, len(trace) + 1

    def event_of(action: int, missing: Column | int) -> Column:
        found = np.full(count, missing, np.int32)
        is_chosen = trace.action[events] == action
        found[block[is_chosen]] = events[is_chosen]
        return found

    alloc, free = event_of(ALLOC, -1), event_of(FREE_COMPLETED, len(trace))
    free_requested = event_of(FREE_REQUESTED, free)
    if (trace.action == FREE_REQUESTED).any():  # of a block without one it is older than the trace
        free_requested[(alloc < 0) & (free_requested == free)] = -1
    named = events[np.searchsorted(block, np.arange(count))]  # the first event of each block
    order = np.lexsort((trace.address[named], alloc))
    alloc, free, free_requested, named = (
        column[order] for column in (alloc, free, free_requested, named)
    )
    size_bytes = trace.size_bytes[named]
    missing_stack, birth_step = missing_allocations(trace, free_requested, free)

    def of_alloc(column: Column) -> Column:
        return np.where(alloc >= 0, column[named], 0).astype(column.dtype)

    active = totals(alloc + 1, free + 1, size_bytes, entries)
    nothing = np.zeros(entries, np.int64)
    history = History(
        usage=Usage(
            requested_bytes=active,
            allocated_bytes=totals(alloc + 1, free_requested + 1, size_bytes, entries),
            active_bytes=active,
            reserved_bytes=active,
            inactive_split_bytes=nothing,
            largest_free_bytes=nothing,
            free_squares=nothing.astype(np.float64),
            segments=nothing,
        ),
        blocks=Lifetimes(
            address=trace.address[named],
            stream=trace.stream[named],
            size_bytes=size_bytes,
            requested_bytes=size_bytes,
            pool=of_alloc(trace.pool),
            stack=np.where(alloc >= 0, of_alloc(trace.stack), missing_stack),
            user_metadata=of_alloc(trace.user_metadata),
            birth_step=birth_step,
            alloc_event=alloc,
            free_requested_event=free_requested,
            free_event=free,
            is_sized=np.ones(count, bool),
        ),
        exact_from=0,
        uncertain_bytes=np.zeros(0, np.int64),
        is_replayed=False,
    )
    return history.without_exact_entries()
