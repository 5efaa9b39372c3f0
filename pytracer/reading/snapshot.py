"""A memory snapshot as columns, the form in which `load` returns a file.

Each distinct stack, frame, string and memory pool is stored once, and columns refer to it by index.
Index 0 is the empty value: no stack, "", the default pool. Names of sizes in bytes end in `_bytes`,
times are microseconds since the Unix epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pytracer import ACTIONS
from pytracer.reading.metadata import FileMetadata
from pytracer.text import BriefRepr

Column = NDArray[Any]

(
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SNAPSHOT,
    OOM,
    WORKSPACE_SNAPSHOT,
    ANNOTATE,
) = range(len(ACTIONS))

TAKES_MEMORY = (SEGMENT_ALLOC, SEGMENT_MAP)
"""The actions by which an allocator takes memory from the device."""

GIVES_MEMORY = (SEGMENT_FREE, SEGMENT_UNMAP)
"""The actions by which an allocator gives memory back to the device."""

INACTIVE, PENDING_FREE, ALLOCATED = range(3)
"""The states of a block: free; freed by the program but still used on a stream; allocated."""

NO_TIME = -1
"""The value of `Trace.time_us` in files without times (torch_npu's, and torch's before 2.2)."""


class Frame(NamedTuple):
    """One frame of a call stack.

    Attributes:
        filename: The path of the source file.
        name: The function's name.
        line: The line number; 0: unknown.
    """

    filename: str
    name: str
    line: int


def compress_constant(column: Column) -> Column:
    """Return the column, as a view of one value if all are equal (often streams and pools)."""
    if len(column) == 0 or np.any(column != column[0]):
        return column
    return np.broadcast_to(column[0], column.shape)


@dataclass(frozen=True, eq=False)
class Stacks:
    """All distinct call stacks, innermost frame first; stack 0 is empty.

    Attributes:
        offsets: int64, where each stack begins in `frame`, and the end of the last stack.
        frame: uint32, the frames of all stacks, one stack after the other.
        filename, name: uint32, for each distinct frame an index in `strings`.
        line: int64, for each distinct frame the line number; 0: unknown.
        forward: uint32, for the stack of an allocation in the backward pass the stack of the
            forward call that made its autograd node; 0: unknown, or not in the backward pass.
        node: uint32, the name of that node, such as LogSoftmaxBackward0: an index in `strings`.
        phase: uint32, the phase of that forward call: an index in `strings`; 0: none, or unknown.
        is_exact: bool, whether `forward` and `phase` are those of this node, and not of a
            neighbouring node.
        strings: The snapshot's strings.
        torch_folders: The folders of torch's packages, as in "/opt/pytorch/torch"; () if the file
            does not name them.
    """

    offsets: Column
    frame: Column
    filename: Column
    name: Column
    line: Column
    forward: Column
    node: Column
    phase: Column
    is_exact: Column
    strings: Sequence[str]
    torch_folders: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of stacks, with the empty one."""
        return len(self.offsets) - 1

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first."""
        begin, end = self.offsets[stack], self.offsets[stack + 1]
        return tuple(
            Frame(self.strings[self.filename[i]], self.strings[self.name[i]], int(self.line[i]))
            for i in self.frame[begin:end]
        )


class _Columns:
    def __len__(self) -> int:
        """Return the number of rows: of events, in a trace."""
        return len(next(iter(vars(self).values())))


@dataclass(frozen=True, eq=False)
class Allocations(_Columns):
    """What a trace's frees say of allocations that it lacks; columns of equal length.

    Attributes:
        event: int64, the free's index in the trace; ascending.
        stack: uint32, the stack of the allocation.
        birth_step: int64, the step of the allocation, as in `Blocks`.
    """

    event: Column
    stack: Column
    birth_step: Column

    def within(self, rows: slice) -> "Allocations":
        """Return those of some events, of which `rows.start` gets the index 0."""
        begin, end = np.searchsorted(self.event, (rows.start, rows.stop))
        event, stack, step = (column[begin:end] for column in vars(self).values())
        return Allocations(event - rows.start, stack, step)


def _no_allocations() -> Allocations:
    return Allocations(np.zeros(0, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.int64))


@dataclass(frozen=True, eq=False)
class Trace(_Columns):
    """The events of one device, oldest first; columns of equal length.

    Attributes:
        action: uint8, an index in the snapshot's `actions`.
        address: int64; in `oom` events the free bytes that the device reported.
        size_bytes: int64; in `alloc` and both free events the bytes that the program requested.
        stream: int64.
        time_us: int64, or `NO_TIME`.
        stack: uint32, an index in the snapshot's `stacks`.
        pool: uint32, an index in the snapshot's `pools`.
        compile_context, user_metadata: uint32, indices in the snapshot's `strings`. In pytracer's
            files `user_metadata` is the event's phase.
        missing: What is known of the allocations of blocks that are freed in the trace, but not
            allocated in it. Not a column.
    """

    action: Column
    address: Column
    size_bytes: Column
    stream: Column
    time_us: Column
    stack: Column
    pool: Column
    compile_context: Column
    user_metadata: Column
    missing: Allocations = field(default_factory=_no_allocations, kw_only=True)


@dataclass(frozen=True, eq=False)
class Segments(_Columns):
    """The memory that the allocators had reserved at the end; columns of equal length.

    Attributes:
        device: int64, the index of the device's trace; -1: unknown.
        address, size_bytes, stream: int64.
        kind: uint32, "small" or "large": an index in the snapshot's `strings`.
        pool: uint32, an index in the snapshot's `pools`.
        is_expandable: bool.
        stack: uint32.
        first_block: int64, where the segment's blocks begin in the snapshot's `blocks`. They end
            where the next segment's begin.
    """

    device: Column
    address: Column
    size_bytes: Column
    stream: Column
    kind: Column
    pool: Column
    is_expandable: Column
    stack: Column
    first_block: Column


@dataclass(frozen=True, eq=False)
class Blocks(_Columns):
    """The blocks of all segments, in their order; columns of equal length.

    Attributes:
        segment: int64, an index in the snapshot's `segments`.
        address, size_bytes: int64.
        requested_bytes: int64, the bytes that the program requested; `size_bytes` in files that
            do not have them.
        state: uint8: `INACTIVE`, `PENDING_FREE` or `ALLOCATED`.
        stack: uint32.
        category: uint32, what the block holds: "parameter", "gradient", "optimizer_state",
            "buffer", "workspace", "activation", "mixed" or "unknown": an index in the snapshot's
            `strings`. "" in blocks that are not allocated, and in files that do not have it.
        category_rule: uint32, the fact that decided (docs/reference/snapshot-format.md).
        owner: uint32, the name of the largest tensor that has the block, or of the workspace, or
            of what the node calls the tensor that it keeps; "": none is known.
        holder: uint32, which Python object keeps the block's memory alive, as in "cache[3] of
            main()"; "": not searched, or not found.
        owners: int64, how many tensors have the block; 1 for a workspace.
        birth_step: int64, the step in which the block was allocated, or one shortly before it in a
            recording of more than 2,048 steps; 0: no step, or unknown.
    """

    segment: Column
    address: Column
    size_bytes: Column
    requested_bytes: Column
    state: Column
    stack: Column
    category: Column
    category_rule: Column
    owner: Column
    holder: Column
    owners: Column
    birth_step: Column


@dataclass(frozen=True, eq=False, repr=False)
class Snapshot(BriefRepr):
    """The content of a snapshot file.

    Attributes:
        path: The file's path, for messages.
        traces: The events of each device, by device index. In pytracer's files the CPU comes after
            the accelerators. Pinned host memory comes last.
        segments, blocks: The segments and blocks of all devices.
        stacks: The stacks of events, segments and blocks.
        strings: The strings that columns refer to; the first is "".
        pools: int64 of shape (pools, 2); the first is (0, 0), the default pool.
        actions: The names of the values in `Trace.action`: `pytracer.ACTIONS`, then other names in
            the file.
        allocator_settings: The allocator's settings, as torch writes them; {} if the file has none.
        external_annotations: The annotations, as torch writes them: dicts with `name`, `stage`,
            `device` and `time_us`.
        metadata: The metadata that pytracer writes; without values in files of other recorders.
        unknown_keys: The keys that this version does not know and left out, as "event.key", sorted.
        host_device: The device index of torch's pinned host memory; None: the file has none.
    """

    path: str
    traces: tuple[Trace, ...]
    segments: Segments
    blocks: Blocks
    stacks: Stacks
    strings: Sequence[str]
    pools: Column
    actions: tuple[str, ...]
    allocator_settings: dict[str, Any]
    external_annotations: list[dict[str, Any]]
    metadata: FileMetadata
    unknown_keys: tuple[str, ...]
    host_device: int | None = None

    def blocks_in_use(self, device: int) -> Column:
        """Return the rows of a device's blocks that are not free: int64."""
        blocks = self.blocks
        is_own = self.segments.device[blocks.segment] == device
        rows: Column = np.flatnonzero(is_own & (blocks.state != INACTIVE))
        return rows

    def has_times(self, device: int) -> bool:
        """Return whether the file has the times of the device's events."""
        return bool(np.any(self.traces[device].time_us != NO_TIME))

    def backend(self, device: int) -> str:
        """Return the backend of a device: "cuda", "npu", "cpu" or "host"; "" if unknown.

        "host" is torch's pinned host memory.
        """
        if device == self.host_device:
            return "host"
        if self.metadata.device(device).is_cpu:
            return "cpu"
        return next((name for name in self.metadata.backends or () if name != "cpu"), "")

    def device_name(self, device: int) -> str:
        """Return the name of a device, as in "cuda:1", "cpu", "host"; "device 1" if unknown.

        -1 is the device of segments whose device is unknown.
        """
        kind = self.backend(device)
        if kind in ("cpu", "host"):
            return kind
        if device < 0:
            return "unknown device"
        return f"{kind}:{device}" if kind else f"device {device}"

    @property
    def settings_text(self) -> str | None:
        """The allocator's settings in the form of its variable; None if unknown."""
        text = self.allocator_settings.get("PYTORCH_CUDA_ALLOC_CONF")
        # The metadata has those of allocators without a read-back.
        return text if isinstance(text, str) else next(iter(self.metadata.settings), None)


def has_events(trace: Trace) -> bool:
    """Return whether a device was used: an unused one has only the markers of snapshots."""
    return bool(np.any(trace.action != SNAPSHOT))


def used_devices(snapshot: Snapshot) -> list[int]:
    """Return the indices of the devices that have events or segments."""
    used = {index for index, trace in enumerate(snapshot.traces) if has_events(trace)}
    return sorted(used | set(np.unique(snapshot.segments.device).tolist()))
