"""The data of one file: a header and columns, compressed, as the page reads them."""

import json
import shlex
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.layout import are_small
from pytracer.analysis.ooms import limit_bytes_of
from pytracer.page.parts import Part, parts_of, rows_of
from pytracer.page.tables import Packer, Tables, shortened
from pytracer.reading.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    GIVES_MEMORY,
    NO_TIME,
    OOM,
    TAKES_MEMORY,
    Column,
    Snapshot,
)
from pytracer.reading.steps import spans
from pytracer.text import size

MOST_MARKS, MOST_SPANS, MOST_DEPTH, MOST_STEPS, MOST_DEVICES = 100, 10_000, 16, 20_000, 64

UNKNOWN_ROW = 2**32 - 1
_OF_BLOCKS = (ALLOC, FREE_REQUESTED, FREE_COMPLETED)


def file_data(
    snapshot: Snapshot, devices: Sequence[DeviceData], most_events: int, *, is_saved: bool = True
) -> tuple[bytes, list[str]]:
    """Return the data of a file, and what was left out, as sentences.

    Args:
        snapshot, devices: The file; the first device is shown first.
        most_events: The largest number of events of all devices together; the newest are kept. A
            block of a device without a history counts as an event; the largest are kept.
        is_saved: Whether commands can read the file.
    """
    left_out = []
    if (left := len(devices) - MOST_DEVICES) > 0:
        left_out.append(f"{left:,} of {len(devices):,} devices.")
        devices = devices[:MOST_DEVICES]
    rows = sum(map(rows_of, devices))
    share = min(most_events / rows, 1.0) if rows else 1.0
    parts = [part for data in devices for part in parts_of(data, share)]
    packer = Packer()
    tables = Tables(snapshot, parts, packer)
    shown = [_device(part, tables, packer) for part in parts]
    header = {
        "path": tables.text(snapshot.path),
        "actions": [shortened(action) for action in snapshot.actions],
        "frames": tables.frames,
        "stack_depth": snapshot.metadata.stack_depth or 0,
        "sites": tables.sites,
        "devices": shown,
        **tables.finish(),
    }
    left_out += [sentence for part in parts for sentence in part.left_out] + tables.left_out
    if share < 1:
        remedy = f"pytracer view {shlex.quote(snapshot.path)} --max-events {rows}"
        remedy = remedy if is_saved else f"tracer.view(max_events={rows})"
        left_out.append(f"To show all: {remedy}")
    return packer.compressed(json.dumps(header, separators=(",", ":")).encode()), left_out


def _device(part: Part, tables: Tables, packer: Packer) -> dict[str, Any]:
    data, blocks = part.data, part.blocks
    owner, keeping = blocks.column("owner"), part.keeping()
    shown = slice(part.first, part.first + part.events)
    trace = data.trace
    action, address = trace.action[shown], trace.address[shown]
    row = _rows(part)
    is_other = ~np.isin(action, _OF_BLOCKS) if part.has_history else np.ones(len(row), bool)
    others = np.flatnonzero(is_other)
    row[others] = np.arange(len(others))
    # Addresses are relative, and so exact in float64. That of an `oom` event is the free memory.
    is_place = np.isin(action, (*_OF_BLOCKS, *TAKES_MEMORY, *GIVES_MEMORY))
    places = [
        blocks["address"],
        np.array([segment.address for segment in part.segments], np.int64),
        address[others][is_place[others]],
    ]
    base = min((int(column.min()) for column in places if len(column)), default=0)
    size_bytes = trace.size_bytes[shown][others]
    history = data.history
    return {
        "name": tables.text(part.name),
        "is_cpu": data.is_cpu is True,
        "segments_are_known": part.segments_are_known,
        "has_history": part.has_history,
        "capacity_bytes": capacity_bytes(data),
        "capacity_until": _capacity_until(part),
        "has_times": bool(np.any(trace.time_us[shown] != NO_TIME)),
        "exact_from": min(max(history.exact_from - part.first, 0), part.events + 1)
        if history.is_known and part.events
        else 0,
        "contradiction": None if part.has_history else tables.text(data.contradiction or ""),
        "first_event": part.first,
        "events": {
            "count": part.events,
            "action": packer.add("u8", action),
            "row": packer.add("u32", row),
            "time_us": packer.add("f64", trace.time_us[shown], delta=True),
            "stack": packer.add("u32", tables.stack[trace.stack[shown]]),
            "phase": packer.add("u32", tables.phase[trace.user_metadata[shown]]),
        },
        "others": {
            "count": len(others),
            "address": packer.add(
                "f64", np.where(is_place[others], _relative(address[others], base), address[others])
            ),
            "size_bytes": packer.add("f64", size_bytes),
            "stream": packer.add("f64", trace.stream[shown][others]),
            "pool": packer.add("u32", tables.pool[trace.pool[shown][others]]),
            "is_small": packer.add("u8", are_small(action[others], size_bytes)),
        },
        "blocks": {
            "count": len(blocks),
            "address": packer.add("f64", _relative(blocks["address"], base)),
            "size_bytes": packer.add("f64", blocks["size_bytes"]),
            "requested_bytes": packer.add("f64", blocks["requested_bytes"]),
            "stream": packer.add("f64", blocks.of_lives("stream")),
            "pool": packer.add("u32", tables.pool[blocks.of_lives("pool")]),
            "stack": packer.add("u32", tables.stack[blocks["stack"]]),
            "phase": packer.add("u32", tables.phase[blocks["user_metadata"]]),
            "alloc_event": packer.add("i32", part.events_of("alloc_event"), delta=True),
            "free_requested_event": packer.add("i32", part.events_of("free_requested_event")),
            "free_event": packer.add("i32", part.events_of("free_event")),
            "is_sized": packer.add("u8", blocks["is_sized"]),
            "kind": packer.add("u8", tables.known(tables.kinds, blocks.column("shown_kind"))),
            "owner": packer.add("u32", tables.texts(owner.code, owner.values)),
            "holder": packer.add("u32", tables.texts(keeping.code, keeping.values)),
            "module": packer.add("u32", tables.known(tables.modules, blocks.column("module_path"))),
        },
        "segments": _segments(part, tables, packer, base),
        "address_base": hex(base % 2**64),
        "steps": _steps(part),
        "spans": _spans(part, tables),
        "marks": _marks(part, action, trace.size_bytes[shown]),
    }


def capacity_bytes(data: DeviceData) -> int | None:
    """Return how much memory a device's allocator could reserve; None: unknown, or the CPU."""
    if data.is_cpu:
        return None
    if data.history.is_known:
        return limit_bytes_of(data.snapshot, data.device, data.history)
    return data.metadata.total_bytes


def _capacity_until(part: Part) -> int | None:
    """Return the entry from which `capacity_bytes` is unknown; None: it holds at all entries.

    A capacity that was found at an out-of-memory error changes when another process takes or frees
    memory. A larger reservation shows that it did.
    """
    data, limit = part.data, capacity_bytes(part.data)
    ooms = np.flatnonzero(data.trace.action == OOM)
    if limit is None or not data.history.is_known or len(ooms) == 0:
        return None
    if int(data.history.usage.reserved_bytes.max()) <= limit:
        return None
    return max(int(ooms[-1]) + 2 - part.first, 0)


def _rows(part: Part) -> Column:
    """Return for each event the row of its block; `UNKNOWN_ROW` for other events."""
    row = np.full(part.events, UNKNOWN_ROW, np.uint32)
    if part.has_history:
        for name in ("alloc_event", "free_requested_event", "free_event"):
            events = part.events_of(name)
            found = np.flatnonzero((events >= 0) & (events < part.events))
            row[events[found]] = found
    return row


def _relative(address: Column, base: int) -> Column:
    # The difference of two int64 may need 64 bits.
    found: Column = (address.astype(np.uint64) - np.uint64(base % 2**64)).astype(np.float64)
    return found


def _segments(part: Part, tables: Tables, packer: Packer, base: int) -> dict[str, Any]:
    def column(name: str) -> Column:
        return np.array([getattr(segment, name) for segment in part.segments], np.int64)

    return {
        "count": len(part.segments),
        "address": packer.add("f64", _relative(column("address"), base), delta=True),
        "size_bytes": packer.add("f64", column("size_bytes")),
        "stream": packer.add("f64", column("stream")),
        "pool": packer.add("u32", tables.pool[column("pool")]),
        "is_small": packer.add("u8", column("is_small")),
        "is_expandable": packer.add("u8", column("is_expandable")),
    }


def _steps(part: Part) -> list[tuple[int, int]]:
    boundaries = part.data.boundaries
    if not part.events or not part.data.has_marked_steps:
        return []
    before = bisect_right(boundaries, part.first, key=lambda boundary: boundary[1])
    kept = boundaries[max(before - 1, 0) :]
    if len(kept) > MOST_STEPS:
        part.left_out.append(
            f"{part.name}: the first {len(kept) - MOST_STEPS:,} of {len(kept):,} steps are unnamed."
        )
        kept = kept[-MOST_STEPS:]
    return [(step, max(first - part.first, 0)) for step, first in kept]


def _spans(part: Part, tables: Tables) -> list[dict[str, Any]]:
    """Return the phases as spans of events; [] if the file has no times of phases or events."""
    if not part.events or not part.data.snapshot.has_times(part.data.device):
        return []
    trace = part.data.trace
    times = np.maximum.accumulate(trace.time_us)
    begin_us = int(times[part.first])
    # What the page's axis of time counts from.
    shown_us = trace.time_us[part.first :]
    start_us = int(next(iter(shown_us[shown_us != NO_TIME]), begin_us))
    known = spans(part.data.snapshot)
    found = [span for span in known if not span.is_step and span.end_us > begin_us]
    # The longest phases are kept, because others are inside of them.
    found.sort(key=lambda span: span.begin_us - span.end_us)
    if len(found) > MOST_SPANS:
        part.left_out.append(
            f"{part.name}: the {len(found) - MOST_SPANS:,} shortest of {len(found):,} phases are "
            "left out."
        )
        del found[MOST_SPANS:]
    found.sort(key=lambda span: (span.begin_us, -span.end_us))
    outer: list[int] = []  # the ends of the phases around the current one
    shown: list[dict[str, Any]] = []
    for span in found:
        outer = [end for end in outer if end > span.begin_us][-MOST_DEPTH:]
        begin, end = np.searchsorted(times, (span.begin_us, span.end_us)) - part.first
        where = {"depth": len(outer), "begin": max(int(begin), 0), "end": int(end)}
        where |= {"begin_us": max(span.begin_us - start_us, 0), "end_us": span.end_us - start_us}
        shown.append({"name": tables.text(span.name), **where})
        outer.append(span.end_us)
    return shown


def _marks(part: Part, action: Column, size_bytes: Column) -> list[dict[str, Any]]:
    """Return the moments to point out, each by the event before it; -1: before the first event."""
    history = part.data.history
    marks: list[dict[str, Any]] = []
    if history.is_known and part.events:
        allocated = history.usage.allocated_bytes[part.first :]
        peak = int(allocated.argmax())
        is_highest = allocated[peak] == history.usage.allocated_bytes.max()
        name = "Peak" if is_highest else "Peak of the events shown"
        text = f"{name}: {size(int(allocated[peak]))} allocated"
        marks.append({"event": peak - 1, "kind": "peak", "text": text})
    ooms = np.flatnonzero(action == OOM)
    if len(ooms) > MOST_MARKS:
        part.left_out.append(
            f"{part.name}: the first {len(ooms) - MOST_MARKS:,} of {len(ooms):,} out-of-memory "
            "errors have no marks."
        )
    for event in ooms[-MOST_MARKS:].tolist():
        text = f"Out of memory: {size(int(size_bytes[event]))} requested"
        marks.append({"event": event, "kind": "oom", "text": text})
    marks.append({"event": part.events - 1, "kind": "end", "text": "End of the file"})
    return marks
