"""Memory that is cached on streams which the program does not use any more.

Each stream has free memory of its own. A program that makes a new stream in each step reserves more
and more, although it never holds more: torch gives such memory back only when memory runs out.
"""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import CallChains
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.held_memory import sum_by_group
from pytracer.analysis.layout import layout_at
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import ALLOC, Frame

_LEAST_BYTES = 256 * 2**20
_LEAST_PART = 0.2
"""The least part of the reserved memory that idle streams are told for."""


@dataclass(frozen=True)
class IdleStreams:
    """Memory of streams without a block in use that have not allocated for a complete step.

    Attributes:
        streams: The number of streams, at least two.
        cached_bytes: The bytes of their segments.
        call_site: The line that allocated most on these streams; None if it is unknown.
    """

    streams: int
    cached_bytes: int
    call_site: Frame | None


def idle_streams(data: DeviceData, entry: int) -> IdleStreams | None:
    """Return the memory of idle streams at an entry of the history; None if there is little.

    It is unknown, and None, if fewer than two steps began before the entry.
    """
    begins = [first for _, first in data.boundaries if first < entry]
    if len(begins) < 2:
        return None
    try:
        layout = layout_at(data.snapshot, data.device, data.history, entry)
    except PytracerError:
        return None
    trace = data.trace
    is_alloc = trace.action == ALLOC
    is_alloc[: begins[-2]] = False
    used = {*trace.stream[is_alloc].tolist()}
    used |= {layout.segments[index].stream for index in np.unique(layout.block_segment).tolist()}
    idle = [segment for segment in layout.segments if segment.stream not in used]
    streams = {segment.stream for segment in idle}
    cached = sum(segment.size_bytes for segment in idle)
    reserved = sum(segment.size_bytes for segment in layout.segments)
    if len(streams) < 2 or cached < max(_LEAST_BYTES, _LEAST_PART * reserved):
        return None
    chains = CallChains(data.snapshot.stacks)
    of_streams = np.flatnonzero((trace.action == ALLOC) & np.isin(trace.stream, list(streams)))
    sites, site = np.unique(chains.sites[trace.stack[of_streams]], return_inverse=True)
    call_site = None
    if len(of_streams):
        largest = sum_by_group(site, trace.size_bytes[of_streams], len(sites)).argmax()
        call_site = chains.site(int(trace.stack[of_streams[site == largest][0]]))
    return IdleStreams(len(streams), cached, call_site)
