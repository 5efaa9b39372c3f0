"""The parts of devices that a page shows: the newest events, and the state before them."""

import math
from dataclasses import dataclass, field, fields, replace

import numpy as np

from pytracer.analysis.block_categories import BlockCategories, file_categories
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.held_memory import HeldMemory, blocks_at_end
from pytracer.analysis.history import Lifetimes
from pytracer.analysis.holder_names import kept_by_text
from pytracer.analysis.layout import Segment, segments_at, segments_at_end
from pytracer.analysis.life_rules import UNKNOWN
from pytracer.analysis.modules import block_modules, modules_of
from pytracer.errors import PytracerError
from pytracer.reading.snapshot import Column
from pytracer.text import size

MOST_OLDER = 1_000_000
"""The most blocks of a device that are older than its events, and the most segments."""


@dataclass(frozen=True, eq=False)
class Blocks(Lifetimes):
    """Blocks with their events counted from the first one of a part, as int64."""

    kind: Column  # int64, an index in the part's `kinds`
    owner: Column  # int64, an index in the snapshot's `strings`
    holder: Column  # int64, what keeps the block, or kept it, an index in the part's `holders`
    module: Column  # int64, an index in the part's `modules`


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
    # Pairs of a category and the rule that decided.
    kinds: tuple[tuple[str, str], ...] = ((UNKNOWN, ""),)
    modules: tuple[str, ...] = ("",)  # the paths of modules; the first is "", no known module
    holders: tuple[str, ...] = ("",)  # clauses as of `kept_by_text`; the first is "", not known
    # The segments before the event `first`, by address.
    segments: list[Segment] = field(default_factory=list)
    # Whether `segments` has all; if not, the page shows no reserved bytes.
    segments_are_known: bool = True


def rows_of(data: DeviceData) -> int:
    """Return the number of a device's events, and of its blocks at the end without a history."""
    blocks = () if data.history.is_replayed else data.snapshot.blocks_in_use(data.device)
    return len(data.trace) + len(blocks)


def parts_of(data: DeviceData, share: float) -> list[Part]:
    """Return what the page shows of a device.

    A trace that contradicts the final state gives two parts: its events, and the state at the end.

    `share` of the `rows_of` the device are shown: the newest events, and the largest blocks.
    """
    most_events = math.ceil(share * len(data.trace))
    if data.history.is_replayed:
        return [_with_history(data, most_events)]
    name = data.snapshot.device_name(data.device)
    if data.contradiction is None:
        return [_state_at_end(data, name, share)]
    first = max(len(data.trace) - most_events, 0)
    blocks = Blocks(*[np.zeros(0, np.int64)] * len(fields(Blocks)))
    left_out = _cut(data, name, first)
    events = Part(name, data, first, len(data.trace) - first, False, blocks, left_out)
    return [events, _state_at_end(data, f"{name}, at the end", share)]


def _cut(data: DeviceData, name: str, first: int) -> list[str]:
    if first == 0:
        return []
    text = (
        f"{name}: the first {first:,} of {len(data.trace):,} events are left out; the page begins "
        "with the state after them"
    )
    history, peak = data.history, data.history.peak
    if history.is_replayed and peak is not None and peak < first:
        peak_bytes = int(history.usage.allocated_bytes[peak])
        moment = f"after event {peak - 1:,}" if peak else "before the first event"
        text += f", and does not show the peak of {size(peak_bytes)} {moment}"
    return [f"{text}."]


def _with_history(data: DeviceData, most_events: int) -> Part:
    history, found = data.history, data.block_categories
    assert found is not None
    lives, count = history.blocks, len(data.trace)
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
    modules = block_modules(data.snapshot, data.device, history)
    holders, holder = _holders(data, count, lives)
    blocks = _blocks(lives, found, first, holder, modules.path)
    kept = np.flatnonzero(lives.free_event >= first)
    part = Part(
        name=name,
        data=data,
        first=first,
        events=count - first,
        has_history=True,
        blocks=blocks if len(kept) == len(lives) else blocks.at(kept),
        left_out=left_out,
        kinds=found.kinds,
        modules=modules.paths,
        holders=holders,
        segments=segments,
        segments_are_known=are_known,
    )
    return _bounded(part, MOST_OLDER)


def _blocks(
    lives: Lifetimes, found: BlockCategories, first: int, holder: Column, module: Column
) -> Blocks:
    """Return blocks, with events counted from `first`."""
    columns = {field.name: getattr(lives, field.name) for field in fields(lives)}
    for name in ("alloc_event", "free_requested_event", "free_event"):
        columns[name] = np.maximum(columns[name].astype(np.int64) - first, -1)
    return Blocks(**columns, kind=found.kind, owner=found.owner, holder=holder, module=module)


def _holders(
    data: DeviceData, entry: int | None, blocks: Lifetimes
) -> tuple[tuple[str, ...], Column]:
    """Return the part's `holders` and `holder`; `entry` is as of `HeldMemory`."""
    held = HeldMemory(data, data.snapshot.stacks, entry, blocks, np.arange(len(blocks)))
    texts, text = held.keeper
    names = [*data.snapshot.strings, *texts]
    name = np.where(text > 0, len(data.snapshot.strings) + text, held.holder)
    used, holder = np.unique(np.append(0, name), return_inverse=True)
    return ("", *(kept_by_text(names[i]) for i in used[1:].tolist())), holder[1:]


def _state_at_end(data: DeviceData, name: str, share: float) -> Part:
    """Return the final state, without events: the oldest files have no trace."""
    snapshot, device = data.snapshot, data.device
    rows = snapshot.blocks_in_use(device)
    found, lives = file_categories(snapshot, rows), blocks_at_end(data)
    holders, holder = _holders(data, None, lives)
    modules = modules_of(snapshot, lives.stack, np.zeros(len(rows), np.int64), rows)
    part = Part(
        name=name,
        data=data,
        first=len(data.trace),
        events=0,
        has_history=True,
        blocks=_blocks(lives, found, 0, holder, modules.path),
        left_out=[],
        kinds=(*found.kinds, (UNKNOWN, "")),
        modules=modules.paths,
        holders=holders,
        segments=segments_at_end(snapshot, device),
    )
    return _bounded(part, min(MOST_OLDER, math.ceil(share * len(rows))))


def _bounded(part: Part, most_blocks: int) -> Part:
    """Return the part without the smallest of too many older blocks, and of too many segments."""
    blocks = part.blocks
    older = np.flatnonzero(blocks.alloc_event < 0)
    if (too_many := len(older) - most_blocks) > 0:
        smallest = older[np.argsort(blocks.size_bytes[older], kind="stable")[:too_many]]
        age = " that are older than the events" if part.events else f" of {len(older):,}"
        part.left_out.append(
            f"{part.name}: {len(smallest):,} blocks{age} are left out, the smallest ones with "
            f"{size(int(blocks.size_bytes[smallest].sum()))} in all."
        )
        part = replace(part, blocks=blocks.at(np.setdiff1d(np.arange(len(blocks)), smallest)))
    if (too_many := len(part.segments) - MOST_OLDER) > 0:
        part.left_out.append(
            f"{part.name}: {too_many:,} segments are left out, and so are the reserved bytes."
        )
        part = replace(part, segments=part.segments[:MOST_OLDER], segments_are_known=False)
    return part
