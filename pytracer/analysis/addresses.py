"""The blocks that had an address, for a device error that names one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


def _on_device(data: DeviceData, address: int) -> Iterator[AddressedBlock]:
    blocks, chains, snapshot = blocks_of(data), data.chains, data.snapshot
    begin = blocks["address"]
    blocks = blocks.where((begin <= address) & (address < begin + blocks["size_bytes"]))
    names = (
        *("address", "size_bytes", "requested_bytes", "birth_step", "stack"),
        *("alloc_event", "free_event"),
    )
    for row in zip(*(blocks[name].tolist() for name in names), strict=True):
        begins, size_bytes, requested_bytes, birth_step, stack, *ends = row
        alloc, free = (
            event if data.history.is_known and 0 <= event < len(data.trace) else None
            for event in ends
        )
        yield AddressedBlock(
            path=snapshot.path,
            name=snapshot.device_name(data.device),
            address=begins,
            offset=address - begins,
            size_bytes=size_bytes,
            requested_bytes=requested_bytes,
            alloc_event=alloc,
            free_event=free,
            alloc_us=None if alloc is None else time_of(data.trace, alloc),
            free_us=None if free is None else time_of(data.trace, free),
            alloc_step=birth_step or None if alloc is None else step_at(data.boundaries, alloc),
            free_step=None if free is None else step_at(data.boundaries, free),
            call_site=chains.site(stack),
            callers=chains.caller_frames(stack),
        )
