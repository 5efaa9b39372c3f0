"""What memory was for, by category: parameters, gradients, activations and others."""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.block_categories import FROM_FORWARD, UNKNOWN, WORKSPACE, rows_at_end
from pytracer.analysis.call_sites import active_at, sum_by_key
from pytracer.analysis.device_data import DeviceData
from pytracer.analysis.history import Lifetimes
from pytracer.reading.snapshot import INACTIVE, Column, Snapshot


@dataclass(frozen=True)
class Owner:
    """The blocks of one owner, such as a parameter.

    Attributes:
        name: The largest tensor in the blocks, as in "layers.3.attn.q_proj.weight", "grad of
            layers.3.attn.q_proj.weight", or "exp_avg of layers.3.attn.q_proj.weight";
            or "cuBLAS workspace".
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
    """

    name: str
    size_bytes: int
    requested_bytes: int
    count: int


@dataclass(frozen=True)
class CategoryUsage:
    """The active blocks of one category at one moment.

    Attributes:
        category: "parameter", "gradient", "optimizer_state", "buffer", "activation", "temporary",
            "communication", "input", "output" or "workspace"; "mixed" for blocks with tensors of
            several of the first four; "unknown" if no fact decides.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
        forward_bytes: In "unknown": the bytes of the blocks that modules allocated in the forward
            pass: activations, outputs, temporary tensors, or memory that modules keep. Else 0.
        owners: The owners of the blocks, the largest first.
    """

    category: str
    size_bytes: int
    requested_bytes: int
    count: int
    forward_bytes: int
    owners: list[Owner]


@dataclass(frozen=True)
class Categories:
    """What a device's memory was for. The categories of a moment add up to its `active_bytes`.

    Attributes:
        at_end: The categories when the file was written, the largest first. In the file of an
            out-of-memory, this is the moment of the out-of-memory.
        at_peak: The categories at `DeviceReport.peak_allocated`; None without a history.
    """

    at_end: list[CategoryUsage]
    at_peak: list[CategoryUsage] | None


def categories(data: DeviceData, peak: int | None) -> Categories | None:
    """Return what the memory of a device was for; None if the file does not have the owners.

    It does not have the owners of pinned host memory.

    Args:
        data: The device.
        peak: The entry of the peak in `history.usage`; None without a history.
    """
    is_host = data.device == data.snapshot.host_device
    if is_host or not data.snapshot.blocks.category.any():
        return None
    at_peak = None if data.history is None or peak is None else categories_at(data, peak)
    return Categories(categories_at(data, None), at_peak)


def categories_at(data: DeviceData, entry: int | None) -> list[CategoryUsage]:
    """Return what the memory of a device was for at one moment, the largest category first.

    Args:
        data: The device; its file has the owners of blocks.
        entry: An entry of `history.usage`; None: the end.
    """
    history, found = data.history, data.block_categories
    if history is None or found is None:
        return _at_end(data)
    entry = len(data.trace) if entry is None else entry
    alive = np.flatnonzero(active_at(history, entry))
    names, category = found.categories()
    return _usages(
        data.snapshot,
        names,
        category[alive],
        found.kind[alive] == FROM_FORWARD,
        found.owner[alive],
        history.blocks.size_bytes[alive],
        history.blocks.requested_bytes[alive],
    )


def _at_end(data: DeviceData) -> list[CategoryUsage]:
    """Return the categories at the end from the snapshot's blocks alone, without the trace."""
    snapshot, blocks = data.snapshot, data.snapshot.blocks
    active = np.flatnonzero(
        (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == data.device)
    )
    keys, category = np.unique(blocks.category[active], return_inverse=True)
    names = tuple(snapshot.strings[key] or UNKNOWN for key in keys.tolist())
    return _usages(
        snapshot,
        names,
        category,
        np.zeros(len(active), bool),
        blocks.owner[active].astype(np.int64),
        blocks.size_bytes[active],
        blocks.requested_bytes[active],
    )


def is_owned_at_end(snapshot: Snapshot, device: int, lives: Lifetimes, chosen: Column) -> Column:
    """Return for each chosen block whether a model or an optimizer has it at the end: bool."""
    row = rows_at_end(snapshot, device, lives)[chosen]
    exists = row >= 0
    category = snapshot.blocks.category[row[exists]]
    owned = [
        key
        for key in np.unique(category).tolist()
        if snapshot.strings[key] not in ("", UNKNOWN, WORKSPACE)
    ]
    is_owned = np.zeros(len(row), bool)
    is_owned[exists] = np.isin(category, owned)
    return is_owned


def _usages(
    snapshot: Snapshot,
    names: tuple[str, ...],
    category: Column,
    is_from_forward: Column,
    owner: Column,
    size_bytes: Column,
    requested_bytes: Column,
) -> list[CategoryUsage]:
    """Return the usage of blocks by category.

    Args:
        snapshot: The snapshot.
        names: Names of categories; several may be "unknown".
        category, is_from_forward, owner, size_bytes, requested_bytes: For each block an index in
            `names`, whether it is unknown and of the forward pass, the owner as an index in the
            snapshot's `strings`, and its sizes.
    """
    first = np.array([names.index(name) for name in names], np.int64)
    category = first[category]
    found = []
    for key in np.unique(category).tolist():
        chosen = category == key
        texts, sums = sum_by_key(owner[chosen], size_bytes[chosen], requested_bytes[chosen], 1)
        owners = [
            Owner(snapshot.strings[text], *total)
            for text, *total in zip(texts.tolist(), *(c.tolist() for c in sums), strict=True)
            if text
        ]
        found.append(
            CategoryUsage(
                category=names[key],
                size_bytes=int(size_bytes[chosen].sum()),
                requested_bytes=int(requested_bytes[chosen].sum()),
                count=int(np.count_nonzero(chosen)),
                forward_bytes=int(size_bytes[chosen & is_from_forward].sum()),
                owners=sorted(owners, key=lambda owner: (-owner.size_bytes, owner.name)),
            )
        )
    return sorted(found, key=lambda usage: -usage.size_bytes)
