"""Collapsed stacks, the input of flame graphs (flamegraph.pl, inferno, speedscope).

Each line has the frames of a stack, outermost first, joined with semicolons, and the bytes that the
stack holds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

from pytracer.analysis.blocks import Blocks, held_at
from pytracer.analysis.device_data import DeviceData, device_data
from pytracer.analysis.moments import moment_of
from pytracer.errors import PytracerError
from pytracer.export.texts import stack_texts
from pytracer.reading.snapshot import OOM, Snapshot, has_events, used_devices
from pytracer.text import printable

At = Literal["peak", "end", "oom"]

NO_STACK = "(no stack)"  # the frame of blocks whose stack is not in the file


def collapse_stacks(
    snapshot: Snapshot, at: At = "peak", roots: Iterable[str] = (), by_category: bool = False
) -> dict[str, int]:
    """Sum up the active bytes by stack.

    Args:
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
    found = [_held(device_data(snapshot, device), at) for device in used_devices(snapshot)]
    if at == "oom" and found and not any(found):
        raise PytracerError(f"{snapshot.path} has no out-of-memory error: leave out --at oom")
    holders = [held for held in found if held is not None and len(held)]
    texts = stack_texts(snapshot, _frame, ";", outermost_first=True)
    texts[0] = NO_STACK
    sizes: dict[str, int] = defaultdict(int)
    for held in holders:
        outside = [*map(_safe, roots)]
        if len(holders) > 1:
            outside.append(snapshot.device_name(held.data.device))
        for group in held.group(*(["category"] if by_category else []), "stack"):
            *category, stack = group.key
            sizes[";".join([*outside, *map(_safe, category), texts[stack]])] += group.size_bytes
    return dict(sizes)


def lines(stacks: Mapping[str, int]) -> Iterable[str]:
    """Return the lines of a file, sorted by stack, without stacks of 0 bytes."""
    return (f"{stack} {size_bytes}\n" for stack, size_bytes in sorted(stacks.items()) if size_bytes)


def _held(data: DeviceData, at: At) -> Blocks | None:
    """Return the memory of a device; None if it has no out-of-memory."""
    if at == "oom" and not (data.trace.action == OOM).any():
        return None
    # Nothing changed on a device without events while others have some.
    is_still = not has_events(data.trace) and any(map(has_events, data.snapshot.traces))
    return held_at(data, None if is_still else moment_of(data, at).entry)


def _frame(filename: str, name: str, line: int) -> str:
    return f"{_safe(name)} ({_safe(filename)}:{line})"


def _safe(text: str) -> str:
    """Replace what would end the frame (a semicolon) or the stack (a newline)."""
    return printable(text).replace(";", ":")
