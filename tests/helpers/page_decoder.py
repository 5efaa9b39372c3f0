"""Read a page as its front end does, and derive from its columns what the page shows.

The order of the steps is that of docs/explanation/page.md. Nothing of `pytracer.page` is used.
"""

import base64
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP = range(7)
TYPES = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "i32": np.int32, "f64": np.float64}

Column = np.ndarray[Any, Any]


def page_json(html: bytes) -> dict[str, Any]:
    """Return the JSON of the page."""
    return json.loads(_element(html, "pytracer-page"))


def page_file(html: bytes, index: int = 0) -> dict[str, Any]:
    """Return the data of a file of the page: its header, with columns instead of descriptions."""
    return decoded(base64.b64decode(_element(html, f"pytracer-data-{index}")))


def decoded(packed: bytes) -> dict[str, Any]:
    """Return the data of a file: its header, with columns instead of their descriptions."""
    content = zlib.decompress(packed)
    length = int.from_bytes(content[:4], "little")
    columns = content[-(-(4 + length) // 8) * 8 :]
    return _filled(json.loads(content[4 : 4 + length]), columns)


def _element(html: bytes, name: str) -> bytes:
    (found,) = re.findall(rb'<script type="[\w/-]+" id="%s">(.*?)</script>' % name.encode(), html)
    return found


def _filled(value: Any, columns: bytes) -> Any:
    if isinstance(value, list):
        return [_filled(each, columns) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() >= {"type", "offset", "length"}:
        return _column(value, columns)
    return {key: _filled(each, columns) for key, each in value.items()}


def _column(stored: dict[str, Any], columns: bytes) -> Column:
    kind, length = np.dtype(TYPES[stored["type"]]), stored["length"]
    if "constant" in stored:
        return np.full(length, stored["constant"], kind)
    size = kind.itemsize * length
    assert stored["offset"] % 8 == 0
    assert stored["offset"] + size <= len(columns)
    planes = np.frombuffer(columns, np.uint8, size, stored["offset"])
    values = np.ascontiguousarray(planes.reshape(kind.itemsize, length).T).view(kind).ravel()
    return np.cumsum(values, dtype=kind) if stored.get("delta") else values


@dataclass
class Moment:
    """What the page shows at an entry."""

    # allocated, active, reserved: In bytes.
    allocated: int
    active: int
    reserved: int
    # Pairs of address and size, by address; adjacent parts of one expandable segment are joined.
    segments: list[tuple[int, int]]
    blocks: Column  # the active blocks, rows of the device's blocks


def moment(device: dict[str, Any], entry: int) -> Moment:
    """Derive the state of a device at an entry from its columns."""
    blocks = device["blocks"]
    is_older = blocks["alloc_event"] < entry
    allocated = is_older & (blocks["free_requested_event"] >= entry)
    active = is_older & (blocks["free_event"] >= entry)
    segments = segments_at(device, entry)
    return Moment(
        allocated=int(blocks["size_bytes"][allocated].sum()),
        active=int(blocks["size_bytes"][active].sum()),
        reserved=sum(size for _, size in segments),
        segments=segments,
        blocks=np.flatnonzero(active),
    )


def segments_at(device: dict[str, Any], entry: int) -> list[tuple[int, int]]:
    """Run the segment events forward from the beginning: pages of mapped memory, then joined."""
    table, base = device["segments"], int(device["address_base"], 16)
    fixed: dict[int, int] = {}
    mapped: dict[int, tuple[int, Any]] = {}  # parts of expandable segments: size, stream and pool
    rows = zip(*(table[name].tolist() for name in ("address", "size_bytes")), strict=True)
    for row, (address, size) in enumerate(rows):
        if table["is_expandable"][row]:
            key = (table["stream"][row], table["pool"][row])
            _map(mapped, int(address), int(size), key)
        else:
            fixed[int(address)] = int(size)
    events, others = device["events"], device["others"]
    for event in range(entry):
        action = int(events["action"][event])
        if action not in (SEGMENT_ALLOC, SEGMENT_FREE, MAP, UNMAP):
            continue
        row = events["row"][event]
        address, size = int(others["address"][row]), int(others["size_bytes"][row])
        if action == SEGMENT_ALLOC:
            fixed[address] = size
        elif action == SEGMENT_FREE:
            assert fixed.pop(address) == size
        elif action == MAP:
            _map(mapped, address, size, (others["stream"][row], others["pool"][row]))
        else:
            _unmap(mapped, address, size)
    joined: list[tuple[int, int, Any]] = []
    for address, (size, key) in sorted(mapped.items()):
        if joined and joined[-1][0] + joined[-1][1] == address and joined[-1][2] == key:
            joined[-1] = (joined[-1][0], joined[-1][1] + size, key)
        else:
            joined.append((address, size, key))
    found = [*fixed.items(), *((address, size) for address, size, _ in joined)]
    return sorted((address + base, size) for address, size in found)


def _map(mapped: dict[int, tuple[int, Any]], address: int, size: int, key: Any) -> None:
    mapped[address] = (size, key)


def _unmap(mapped: dict[int, tuple[int, Any]], address: int, size: int) -> None:
    """Remove a range, which may begin and end inside parts."""
    for begin, (length, key) in list(mapped.items()):
        end = begin + length
        if begin < address + size and address < end:
            del mapped[begin]
            if begin < address:
                mapped[begin] = (address - begin, key)
            if address + size < end:
                mapped[address + size] = (end - address - size, key)
