"""Collapsed stacks, for flame graphs: a line a stack, its frames joined with semicolons, outermost
first, and the bytes that it holds. flamegraph.pl, inferno and speedscope read them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from pytracer.errors import PytracerError
from pytracer.reading.devices import device_name, devices_of, has_events
from pytracer.reading.export import stack_texts
from pytracer.reading.history import replay
from pytracer.reading.sites import alive_at, sums
from pytracer.reading.snapshot import INACTIVE, OOM, Snapshot, Stacks
from pytracer.reading.text import printable

At = Literal["peak", "end", "oom"]

NO_STACK = "(no stack)"
"""The frame of blocks whose stack is not in the file."""
_KNOWN = 'what is active at the end ("--at end") is known'


def collapsed(snapshot: Snapshot, at: At = "peak", roots: Iterable[str] = ()) -> dict[str, int]:
    """Sums up what was active at a moment, by stack.

    Args:
        snapshot: As `load` returns it.
        at: "peak": when most was allocated; "end": when the snapshot was taken; "oom": when memory
            ran out, the last time.
        roots: Frames outside of all others.

    Returns:
        Bytes by stack. Where several devices hold something, theirs is the outermost frame.

    Raises:
        PytracerError: Memory did not run out, or the trace does not tell what was active then.
    """
    devices = devices_of(snapshot)
    if at != "end" and devices and not any(map(has_events, snapshot.traces)):
        raise PytracerError(f"{snapshot.path}: it has no events, and so no {at}; {_KNOWN}")
    sizes = {each: _sizes(snapshot, each, at) for each in devices}
    if at == "oom" and all(each is None for each in sizes.values()):
        raise PytracerError(f"{snapshot.path}: memory did not run out in it: leave --at oom out")
    texts = stack_texts(snapshot.stacks, _frames(snapshot.stacks), ";", outermost_first=True)
    texts[0] = NO_STACK
    found: dict[str, int] = defaultdict(int)
    holders = [each for each in devices if sizes[each]]
    for each, by_stack in sizes.items():
        outside = [*map(_safe, roots), *([device_name(snapshot, each)] if len(holders) > 1 else [])]
        for stack, size_bytes in (by_stack or {}).items():
            found[";".join([*outside, texts[stack]])] += size_bytes
    return dict(found)


def lines(stacks: Mapping[str, int]) -> Iterable[str]:
    """The lines of a file, in the order of stacks; without those of no bytes."""
    return (f"{stack} {size_bytes}\n" for stack, size_bytes in sorted(stacks.items()) if size_bytes)


def _sizes(snapshot: Snapshot, device: int, at: At) -> dict[int, int] | None:
    """Bytes by stack; None: the device's memory did not run out."""
    if at == "end":
        blocks = snapshot.blocks
        alive = (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
        return _sums(blocks.stack[alive], blocks.size_bytes[alive])
    try:
        history = replay(snapshot, device)
    except PytracerError as error:  # a contradiction, or no trace
        raise PytracerError(f"{error}; {_KNOWN}") from error
    level = int(history.levels.allocated_bytes.argmax())
    if at == "oom":
        ooms = np.flatnonzero(snapshot.traces[device].action == OOM)
        if len(ooms) == 0:
            return None
        level = int(ooms[-1])
    alive = alive_at(history, level)
    return _sums(history.blocks.stack[alive], history.blocks.size_bytes[alive])


def _sums(stack: np.ndarray, size_bytes: np.ndarray) -> dict[int, int]:
    present, of_block = np.unique(stack, return_inverse=True)
    held = sums(of_block, size_bytes, len(present))
    return dict(zip(present.tolist(), held.tolist(), strict=True))


def _frames(stacks: Stacks) -> list[str]:
    strings = [_safe(text) for text in stacks.strings]
    return [
        f"{strings[name]} ({strings[filename]}:{line})"
        for filename, name, line in zip(
            stacks.filename.tolist(), stacks.name.tolist(), stacks.line.tolist(), strict=True
        )
    ]


def _safe(text: str) -> str:
    """A semicolon would begin another frame, and a newline another stack."""
    return printable(text).replace(";", ":")
