"""How often what happened in a trace."""

from dataclasses import dataclass

import numpy as np

from pytracer.reading.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Trace,
)


@dataclass(frozen=True)
class Counts:
    """How often what happened, in the trace.

    Attributes:
        allocs, frees: Of blocks; a free is when the memory could serve another block.
        device_allocs: How often memory was taken from the device (`segment_alloc`, `segment_map`).
        device_frees: How often it was given back (`segment_free`, `segment_unmap`).
        ooms: How often memory ran out.
        retries: How often the device had no memory for a segment, so that the allocator gave back
            what it had cached and tried again; `count_retries` tells how they are known. None for
            the CPU, which has none.
    """

    allocs: int
    frees: int
    device_allocs: int
    device_frees: int
    ooms: int
    retries: int | None


def counts_of(trace: Trace, is_cpu: bool | None) -> Counts:
    """Counts events; `is_cpu` as in a `DeviceReport`."""

    def times(*actions: int) -> int:
        return sum(int(np.count_nonzero(trace.action == action)) for action in actions)

    return Counts(
        allocs=times(ALLOC),
        frees=times(FREE_COMPLETED),
        device_allocs=times(SEGMENT_ALLOC, SEGMENT_MAP),
        device_frees=times(SEGMENT_FREE, SEGMENT_UNMAP),
        ooms=times(OOM),
        retries=None if is_cpu else count_retries(trace),
    )


def count_retries(trace: Trace) -> int:
    """How often the allocator gave back what it had cached and tried again.

    Traces have no event for this (`num_alloc_retries` of `memory_stats()` counts it). What shows it
    is that memory is taken from the device directly after some was given back, or that memory ran
    out, before which the allocator always tried. So what else gives memory back just before more is
    taken counts too: `empty_cache()`, the allocator's own collector
    (`garbage_collection_threshold`), and, with `max_split_size_mb`, the first try after a failure,
    which gives back some cached blocks and which torch does not count. A retry that had nothing to
    give back, and found memory that another process had just freed, leaves no trace. Under graph
    capture the allocator does not try again, so that an out-of-memory there counts one too many.
    """
    took = (trace.action == SEGMENT_ALLOC) | (trace.action == SEGMENT_MAP)
    gave_back = (trace.action == SEGMENT_FREE) | (trace.action == SEGMENT_UNMAP)
    return int(np.count_nonzero(took[1:] & gave_back[:-1]) + np.count_nonzero(trace.action == OOM))
