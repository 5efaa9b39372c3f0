"""The parts of devices that a page shows: the newest events, and the state before them."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from pytracer.analysis.blocks import Blocks, Coded, blocks_of, held_at, numbered
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.holder_names import kept_by_text
from pytracer.analysis.layout import Segment, segments_at, segments_at_end
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Column
from pytracer.text import size

MOST_OLDER = 1_000_000
"""The most blocks of a device that are older than its events, and the most segments."""


@dataclass(frozen=True, eq=False)
class Part:
    """What the page shows of a device."""

    name: str  # the name of the device, as in "cuda:0"
    data: DeviceData
    first: int  # the first event that is shown; earlier ones are left out
    events: int  # the number of events that are shown: the last ones of the trace, or none
    has_history: bool  # whether `blocks` have the events by which they were allocated and freed
    blocks: Blocks  # the blocks of these events, and those that existed before them
    left_out: list[str]  # what is not shown, as sentences
    # The segments before the event `first`, by address.
    segments: list[Segment] = field(default_factory=list)
    # Whether `segments` has all; if not, the page shows no reserved bytes.
    segments_are_known: bool = True

    def events_of(self, name: str) -> Column:
        """Return an event of each block, counted from the first one of the part: int64."""
        first = self.first if self.events else 0
        found: Column = np.maximum(self.blocks[name].astype(np.int64) - first, -1)
        return found

    def keeping(self) -> Coded:
        """Return what keeps each block, or kept it, as `kept_by_text`; "" if it is not known."""
        names, name = self.blocks.column("kept_by").unless(self.blocks.column("released"))
        used, code = numbered(name)
        return Coded([names[i] and kept_by_text(names[i]) for i in used.tolist()], code)


def rows_of(data: DeviceData) -> int:
    """Return the number of a device's events, and of its blocks at the end without a history."""
    blocks = () if data.history.is_known else data.snapshot.blocks_in_use(data.device)
    return len(data.trace) + len(blocks)


def parts_of(data: DeviceData, share: float) -> list[Part]:
    """Return what the page shows of a device.

    A trace that contradicts the final state gives two parts: its events, and the state at the end.

    `share` of the `rows_of` the device are shown: the newest events, and the largest blocks.
    """
    most_events = math.ceil(share * len(data.trace))
    if data.history.is_known:
        return [_with_history(data, most_events)]
    name = data.snapshot.device_name(data.device)
    if data.contradiction is None:
        return [_state_at_end(data, name, share)]
    first = max(len(data.trace) - most_events, 0)
    nothing = held_at(data, None).where(np.zeros(0, np.int64))
    left_out = _cut(data, name, first)
    events = Part(name, data, first, len(data.trace) - first, False, nothing, left_out)
    return [events, _state_at_end(data, f"{name}, at the end", share)]


def _cut(data: DeviceData, name: str, first: int) -> list[str]:
    if first == 0:
        return []
    text = (
        f"{name}: the first {first:,} of {len(data.trace):,} events are left out; the page begins "
        "with the state after them"
    )
    history, peak = data.history, data.history.peak
    if history.is_known and peak is not None and peak < first:
        peak_bytes = int(history.usage.allocated_bytes[peak])
        moment = f"after event {peak - 1:,}" if peak else "before the first event"
        text += f", and does not show the peak of {size(peak_bytes)} {moment}"
    return [f"{text}."]


def _with_history(data: DeviceData, most_events: int) -> Part:
    count, blocks = len(data.trace), blocks_of(data)
    first = max(count - most_events, 0)
    name = data.snapshot.device_name(data.device)
    left_out, are_known = _cut(data, name, first), True
    try:
        segments = segments_at(data.snapshot, data.device, first)
    except PytracerError as error:
        segments, are_known = [], False
        left_out.append(
            f"{name}: the segments are unknown, and so are the reserved bytes: {error}."
        )
    part = Part(
        name=name,
        data=data,
        first=first,
        events=count - first,
        has_history=True,
        blocks=blocks.where(blocks["free_event"] >= first) if first else blocks,
        left_out=left_out,
        segments=segments,
        segments_are_known=are_known,
    )
    return _bounded(part, MOST_OLDER)


def _state_at_end(data: DeviceData, name: str, share: float) -> Part:
    """Return the final state, without events: the oldest files have no trace."""
    blocks = held_at(data, None)
    part = Part(
        name=name,
        data=data,
        first=len(data.trace),
        events=0,
        has_history=True,
        blocks=blocks,
        left_out=[],
        segments=segments_at_end(data.snapshot, data.device),
    )
    return _bounded(part, min(MOST_OLDER, math.ceil(share * len(blocks))))


def _bounded(part: Part, most_blocks: int) -> Part:
    """Return the part without the smallest of too many older blocks, and of too many segments."""
    blocks = part.blocks
    size_bytes, older = blocks["size_bytes"], np.flatnonzero(blocks["alloc_event"] < 0)
    if (too_many := len(older) - most_blocks) > 0:
        smallest = older[np.argsort(size_bytes[older], kind="stable")[:too_many]]
        age = " that are older than the events" if part.events else f" of {len(older):,}"
        part.left_out.append(
            f"{part.name} lacks the smallest blocks{age}: {len(smallest):,}, with "
            f"{size(blocks.bytes_where(smallest))} in all."
        )
        part = replace(part, blocks=blocks.where(np.setdiff1d(np.arange(len(blocks)), smallest)))
    if (too_many := len(part.segments) - MOST_OLDER) > 0:
        part.left_out.append(
            f"{part.name}: {too_many:,} segments and the curve of reserved bytes are left out."
        )
        part = replace(part, segments=part.segments[:MOST_OLDER], segments_are_known=False)
    return part
