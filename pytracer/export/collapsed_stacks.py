"""Collapsed stacks, the input of flame graphs (flamegraph.pl, inferno, speedscope).

Each line has the frames of a stack, outermost first, joined with semicolons, and the bytes that the
stack holds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from pytracer.analysis.block_categories import UNKNOWN, block_categories
from pytracer.analysis.call_sites import active_at, sum_by_key
from pytracer.analysis.history import replay
from pytracer.errors import PytracerError
from pytracer.export.texts import check_stack_texts, frame_texts, stack_texts
from pytracer.reading.metadata import device_name
from pytracer.reading.snapshot import (
    INACTIVE,
    OOM,
    Column,
    Snapshot,
    has_events,
    used_devices,
)
from pytracer.text import printable

At = Literal["peak", "end", "oom"]

NO_STACK = "(no stack)"
"""The frame of blocks whose stack is not in the file."""

_Sizes = dict[tuple[int, tuple[str, ...]], int]
"""Bytes by stack and category, which is a tuple of one text, or empty."""

_REMEDY = 'use "--at end", which needs no events'


def collapse_stacks(
    snapshot: Snapshot, at: At = "peak", roots: Iterable[str] = (), by_category: bool = False
) -> dict[str, int]:
    """Sum up the active bytes by stack.

    Args:
        snapshot: The snapshot, as returned by `load`.
        at: "peak", where most was allocated; "end", when the snapshot was taken; "oom", at the last
            out-of-memory.
        roots: Frames to put outside of all others.
        by_category: Whether the outermost frame of a stack, inside of `roots` and the device, is
            what the memory was for, such as "activation".

    Returns:
        Bytes by stack. If several devices hold memory, their names are the outermost frames.

    Raises:
        PytracerError: The file has no out-of-memory, or its trace cannot be replayed.
    """
    devices = used_devices(snapshot)
    if at != "end" and devices and not any(map(has_events, snapshot.traces)):
        raise PytracerError(f"{snapshot.path} has no events, and so no {at}: {_REMEDY}")
    sizes = {device: _sizes(snapshot, device, at, by_category) for device in devices}
    if at == "oom" and all(by_stack is None for by_stack in sizes.values()):
        raise PytracerError(f"{snapshot.path} has no out-of-memory: leave --at oom out")
    check_stack_texts(snapshot)
    frames = frame_texts(snapshot.stacks, _frame)
    texts = stack_texts(snapshot.stacks, frames, ";", outermost_first=True)
    texts[0] = NO_STACK
    found: dict[str, int] = defaultdict(int)
    holders = [device for device in devices if sizes[device]]
    for device, by_stack in sizes.items():
        outside = [*map(_safe, roots)]
        if len(holders) > 1:
            outside.append(device_name(snapshot, device))
        for (stack, category), size_bytes in (by_stack or {}).items():
            found[";".join([*outside, *category, texts[stack]])] += size_bytes
    return dict(found)


def lines(stacks: Mapping[str, int]) -> Iterable[str]:
    """Return the lines of a file, sorted by stack, without stacks of 0 bytes."""
    return (f"{stack} {size_bytes}\n" for stack, size_bytes in sorted(stacks.items()) if size_bytes)


def _sizes(snapshot: Snapshot, device: int, at: At, by_category: bool) -> _Sizes | None:
    """Return the bytes by stack and category; None if the device has no out-of-memory."""
    if at == "end" and not by_category:
        blocks = snapshot.blocks
        alive = (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
        return _sums(blocks.stack[alive], blocks.size_bytes[alive])
    try:
        history = replay(snapshot, device)
    except PytracerError as error:  # a contradiction, or no trace
        remedy = "leave the categories out" if at == "end" else _REMEDY
        raise PytracerError(f"{error}; or {remedy}") from error
    entry = int(history.usage.allocated_bytes.argmax())
    if at == "oom":
        ooms = np.flatnonzero(snapshot.traces[device].action == OOM)
        if len(ooms) == 0:
            return None
        entry = int(ooms[-1])
    elif at == "end":
        entry = len(snapshot.traces[device])
    alive = active_at(history, entry)
    stack, size_bytes = history.blocks.stack[alive], history.blocks.size_bytes[alive]
    if not by_category:
        return _sums(stack, size_bytes)
    names, category = block_categories(snapshot, device, history).categories()
    found: _Sizes = {}
    for index in np.unique(category[alive]).tolist():
        chosen = category[alive] == index
        found |= _sums(stack[chosen], size_bytes[chosen], (_safe(names[index] or UNKNOWN),))
    return found


def _sums(stack: Column, size_bytes: Column, category: tuple[str, ...] = ()) -> _Sizes:
    stacks, (held,) = sum_by_key(stack, size_bytes)
    keys = ((key, category) for key in stacks.tolist())
    return dict(zip(keys, held.tolist(), strict=True))


def _frame(filename: str, name: str, line: int) -> str:
    return f"{_safe(name)} ({_safe(filename)}:{line})"


def _safe(text: str) -> str:
    """Replace what would end the frame (a semicolon) or the stack (a newline)."""
    return printable(text).replace(";", ":")
