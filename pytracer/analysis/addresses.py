"""The blocks that had an address, for a device error that names one."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pytracer.analysis.blocks import blocks_of
from pytracer.analysis.device_data import DeviceData, chosen_devices, device_data, why_empty
from pytracer.analysis.usage import time_of
from pytracer.reading.snapshot import Frame, Snapshot
from pytracer.reading.steps import step_at


@dataclass(frozen=True)
class AddressedBlock:
    """A block in which an address was.

    Attributes:
        path: The file's path.
        name: The name of the device, as in "cuda:0".
        address: Where the block begins.
        offset: The address asked for, minus `address`.
        size_bytes: The bytes that the allocator gave the block.
        requested_bytes: The bytes that the program requested.
        alloc_event, free_event: The events of its allocation, and of its free; None: before the
            trace, and not until its end.
        alloc_us, free_us: The times of these events; None if unknown.
        alloc_step, free_step: The steps of these events; None if unknown.
        call_site: The call site of the allocation; None if unknown.
        callers: The program's frames that called it, innermost first.
    """

    path: str
    name: str
    address: int
    offset: int
    size_bytes: int
    requested_bytes: int
    alloc_event: int | None
    free_event: int | None
    alloc_us: int | None
    free_us: int | None
    alloc_step: int | None
    free_step: int | None
    call_site: Frame | None
    callers: list[Frame]


def blocks_at(
    snapshot: Snapshot,
    address: int,
    device: int | None = None,
    note: Callable[[str], object] = lambda _: None,
) -> list[AddressedBlock]:
    """Return the blocks in which an address was, in the order of their allocation.

    Args:
        device: The index of the only device; None for all devices that were used.
        note: Called with a sentence if the file has no device.

    Raises:
        PytracerError: The snapshot has no such device.
    """
    chosen = chosen_devices(snapshot, device)
    if not chosen:
        note(f"{snapshot.path}: {why_empty(snapshot.metadata)}")
    return [block for i in chosen for block in _on_device(device_data(snapshot, i), address)]


def _on_device(data: DeviceData, address: int) -> list[AddressedBlock]:
    snapshot, history = data.snapshot, data.history
    lives = blocks_of(data).lives
    begin, size, stack = lives.address, lives.size_bytes, lives.stack
    chains = data.chains
    found = []
    for row in np.flatnonzero((begin <= address) & (address < begin + size)).tolist():
        ends = [
            event if 0 <= event < len(data.trace) and history.is_known else None
            for event in (int(lives.alloc_event[row]), int(lives.free_event[row]))
        ]
        times = [None if event is None else time_of(data.trace, event) for event in ends]
        steps = [None if event is None else step_at(data.boundaries, event) for event in ends]
        if ends[0] is None:
            steps[0] = int(lives.birth_step[row]) or None
        found.append(
            AddressedBlock(
                path=snapshot.path,
                name=snapshot.device_name(data.device),
                address=int(begin[row]),
                offset=address - int(begin[row]),
                size_bytes=int(size[row]),
                requested_bytes=int(lives.requested_bytes[row]),
                alloc_event=ends[0],
                free_event=ends[1],
                alloc_us=times[0],
                free_us=times[1],
                alloc_step=steps[0],
                free_step=steps[1],
                call_site=chains.site(int(stack[row])),
                callers=chains.caller_frames(int(stack[row])),
            )
        )
    return found
