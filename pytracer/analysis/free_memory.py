"""The free memory inside segments, as far as one request could use it."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.allocator_rules import SMALL_BYTES
from pytracer.analysis.layout import Layout


@dataclass(frozen=True)
class FreeMemory:
    """The free memory in the segments of one device at one moment.

    Attributes:
        own_bytes: The free bytes in segments that the request could use if its stream did not
            matter: those of its memory pool, for blocks of its size.
        own_segments: The number of these segments that have free memory.
        own_streams: The number of streams to which these segments belong.
    """

    own_bytes: int
    own_segments: int
    own_streams: int


def free_memory(layout: Layout, pool: int, requested_bytes: int) -> FreeMemory:
    """Return the free memory that a request could or could not use.

    Args:
        layout: The segments and blocks of the device.
        pool: The request's memory pool, an index in the snapshot's pools.
        requested_bytes: The size of the request.
    """
    used = np.zeros(len(layout.segments), np.int64)
    np.add.at(used, layout.block_segment, layout.block_bytes)
    free = [
        (segment, segment.size_bytes - int(in_use))
        for segment, in_use in zip(layout.segments, used, strict=True)
        if segment.size_bytes > in_use
    ]
    is_small = requested_bytes <= SMALL_BYTES
    own = [
        (segment, size_bytes)
        for segment, size_bytes in free
        if segment.pool == pool and segment.is_small == is_small
    ]
    return FreeMemory(
        own_bytes=sum(size_bytes for _, size_bytes in own),
        own_segments=len(own),
        own_streams=len({segment.stream for segment, _ in own}),
    )
