"""Fragmentation: the free memory of segments that blocks in use pin, by call site.

The allocator gives a segment back only if all of it is free. Of an expandable segment it gives back
each page that is free. So the free memory of a segment, or of a page, with a block in use is stuck.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.allocator_rules import PAGE_BYTES, UNIT_BYTES
from pytracer.analysis.call_sites import call_sites, frame_at
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data, why_empty
from pytracer.analysis.layout import Layout, Segment, largest_pieces, layout_at, layout_at_end
from pytracer.analysis.moments import Moment, at_moment
from pytracer.analysis.usage import final_sample, sample_at
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Frame, Snapshot


@dataclass(frozen=True)
class Pin:
    """The segments that blocks of one call site keep from being given back.

    A segment with blocks of several call sites counts for the one that has most bytes in it.

    Attributes:
        kind: "large" or "small": segments for blocks of more than 1 MiB, or of at most 1 MiB.
        is_expandable: Whether the segments expand. Then `segments` counts pages with blocks in use.
        stream: The stream of the segments.
        pool: The memory pool of the segments, as torch numbers it; (0, 0) is the default pool.
        call_site: The call site of the blocks; None if unknown.
        segments: The number of segments.
        least_segment_bytes, most_segment_bytes: The sizes of the smallest and the largest segment.
        blocks: The number of blocks in use in these segments, of all call sites.
        block_bytes: The bytes of these blocks.
        stuck_bytes: The free bytes of these segments.
    """

    kind: str
    is_expandable: bool
    stream: int
    pool: tuple[int, int]
    call_site: Frame | None
    segments: int
    least_segment_bytes: int
    most_segment_bytes: int
    blocks: int
    block_bytes: int
    stuck_bytes: int


@dataclass(frozen=True)
class Fragmentation:
    """The free memory of one device at one moment.

    Attributes:
        path: The file's path.
        device: The index of the device in the file.
        name: The name of the device, as in "cuda:0".
        moment: The moment.
        is_exact: Whether the sizes of all blocks are known. If not, free bytes are upper bounds.
        reserved_bytes: The bytes of all segments.
        active_bytes: The bytes of the blocks in use.
        returnable_bytes: The free bytes in segments, or in pages of expandable segments, without
            any block in use. The allocator can give them back to the device.
        stuck_bytes: The free bytes next to blocks in use.
        largest_free_bytes: The size of the largest free block.
        pins: What keeps the stuck bytes, the most bytes first.
    """

    path: str
    device: int
    name: str
    moment: Moment
    is_exact: bool
    reserved_bytes: int
    active_bytes: int
    returnable_bytes: int
    stuck_bytes: int
    largest_free_bytes: int
    pins: list[Pin]


def fragmentation(
    snapshot: Snapshot,
    device: int | None = None,
    at: str | None = None,
    note: Callable[[str], object] = lambda _: None,
) -> list[Fragmentation]:
    """Return the free memory of each device that has a moment, and the call sites that keep it.

    Args:
        snapshot: The snapshot, as returned by `load`.
        device: The index of the only device; None for all devices that were used. The CPU is left
            out, because it has no segments.
        at: The moment, as `moment_of` takes it; None for the last out-of-memory error, or else the
            peak.
        note: Called with a sentence for each device that has no such moment, if others have it.

    Raises:
        PytracerError: The snapshot has no such device, or no device has such a moment.
    """
    chosen = [device_data(snapshot, index) for index in chosen_devices(snapshot, device)]
    if not chosen:
        raise PytracerError(f"{snapshot.path}: {why_empty(snapshot.metadata)}")
    found = at_moment((data for data in chosen if not data.is_cpu), at, _of_device, note)
    if not found:
        raise PytracerError(f"{snapshot.path} has no accelerator, and the CPU has no segments")
    return found


def _of_device(data: DeviceData, moment: Moment) -> Fragmentation:
    snapshot, device, history = data.snapshot, data.device, data.history
    if moment.entry is None:
        layout, sample = layout_at_end(snapshot, device), final_sample(data)
    else:
        layout = layout_at(snapshot, device, history, moment.entry)
        sample = sample_at(data, moment.entry)
    units = (unit for i in range(len(layout.segments)) for unit in _units(layout, i))
    used = [unit for unit in units if unit.stacks]
    stuck = sum(unit.free_bytes for unit in used)
    return Fragmentation(
        path=snapshot.path,
        device=device,
        name=snapshot.device_name(device),
        moment=moment,
        is_exact=sample.is_exact,
        reserved_bytes=sample.reserved_bytes,
        active_bytes=sample.active_bytes,
        returnable_bytes=sample.free_bytes - stuck,
        stuck_bytes=stuck,
        largest_free_bytes=int(largest_pieces(layout).max(initial=0)),
        pins=_pins(snapshot, [unit for unit in used if unit.free_bytes]),
    )


@dataclass(frozen=True)
class _Unit:
    """A segment, or a page of an expandable segment: what the allocator gives back as one."""

    segment: Segment
    size_bytes: int
    free_bytes: int
    stacks: list[int]  # of the blocks in use; a block in several pages is in each of them
    bytes_of_blocks: list[int]


def _units(layout: Layout, index: int) -> list[_Unit]:
    segment = layout.segments[index]
    first, end = np.searchsorted(layout.block_segment, [index, index + 1])
    begins = layout.block_address[first:end] - segment.address
    ends = begins + layout.block_bytes[first:end]
    stacks = layout.block_stack[first:end]
    page = segment.size_bytes
    if segment.is_expandable:
        page = UNIT_BYTES if segment.is_small else PAGE_BYTES
    units = []
    # Pages between the first and the last page of a block are full, others without a block free.
    pages = np.unique(np.append(begins, np.maximum(ends - 1, begins)) // max(page, 1)).tolist()
    for at in [number * page for number in pages]:
        size = min(page, segment.size_bytes - at)
        # Blocks are sorted and do not overlap, so both ends are sorted.
        inside = slice(np.searchsorted(ends, at, "right"), np.searchsorted(begins, at + size))
        used = np.minimum(ends[inside], at + size) - np.maximum(begins[inside], at)
        units.append(
            _Unit(segment, size, size - int(used.sum()), stacks[inside].tolist(), used.tolist())
        )
    return units


def _pins(snapshot: Snapshot, units: list[_Unit]) -> list[Pin]:
    sites = call_sites(snapshot.stacks)
    groups: dict[tuple[bool, bool, int, int, int], list[_Unit]] = defaultdict(list)
    for unit in units:
        by_site: dict[int, int] = defaultdict(int)
        for stack, size in zip(unit.stacks, unit.bytes_of_blocks, strict=True):
            by_site[int(sites[stack])] += size
        site = max(by_site, key=by_site.__getitem__)
        segment = unit.segment
        key = (segment.is_small, segment.is_expandable, segment.stream, segment.pool, site)
        groups[key].append(unit)
    found = []
    for (is_small, expands, stream, pool, site), group in groups.items():
        sizes = [unit.size_bytes for unit in group]
        found.append(
            Pin(
                kind="small" if is_small else "large",
                is_expandable=expands,
                stream=stream,
                pool=(int(snapshot.pools[pool][0]), int(snapshot.pools[pool][1])),
                call_site=frame_at(snapshot.stacks, site),
                segments=len(group),
                least_segment_bytes=min(sizes),
                most_segment_bytes=max(sizes),
                blocks=sum(len(unit.stacks) for unit in group),
                block_bytes=sum(sum(unit.bytes_of_blocks) for unit in group),
                stuck_bytes=sum(unit.free_bytes for unit in group),
            )
        )
    return sorted(found, key=lambda pin: -pin.stuck_bytes)
