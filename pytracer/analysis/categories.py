"""What the live blocks are for: parameters, gradients, optimizers' states, buffers.

A file has the categories of the blocks that were live when it was written. So the categories of the
peak are known for those of its blocks that still existed then.
"""

from dataclasses import dataclass

import numpy as np

from pytracer.analysis.call_sites import active_at, sum_by_key
from pytracer.analysis.history import History, Lifetimes
from pytracer.reading.snapshot import INACTIVE, Column, Snapshot

UNKNOWN = "unknown"

FREED_LATER = "freed later"
"""The category of blocks that did not exist any more when the file was written."""


@dataclass(frozen=True)
class Owner:
    """The blocks of one owner, such as a parameter.

    Attributes:
        name: The largest tensor in the blocks, as in "layers.3.attn.q_proj.weight", "grad of
            layers.3.attn.q_proj.weight", or "exp_avg of layers.3.attn.q_proj.weight".
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
        category: "parameter", "gradient", "optimizer_state" or "buffer"; "mixed" for blocks with
            tensors of several of these; "unknown" for blocks of which no owner is known, such as
            activations; "freed later", before the end only, for blocks that did not exist any more
            when the file was written, so that their category is unknown.
        size_bytes: The bytes that the allocator gave the blocks.
        requested_bytes: The bytes that the program requested.
        count: The number of blocks.
        owners: The owners of the blocks, the largest first.
    """

    category: str
    size_bytes: int
    requested_bytes: int
    count: int
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


def categories(
    snapshot: Snapshot, device: int, history: History | None, peak: int | None
) -> Categories | None:
    """Return what the memory of a device was for; None if the file does not have the owners.

    Args:
        snapshot: The snapshot.
        device: The index of the device's trace.
        history: The device's history; None: it is unknown.
        peak: The entry of the peak in `history.usage`.
    """
    if not snapshot.blocks.category.any():
        return None
    at_end = categories_at(snapshot, device, None, None)
    if history is None or peak is None:
        return Categories(at_end, None)
    return Categories(at_end, categories_at(snapshot, device, history, peak))


def categories_at(
    snapshot: Snapshot, device: int, history: History | None, entry: int | None
) -> list[CategoryUsage]:
    """Return what the memory of a device was for at one moment, the largest category first.

    Args:
        snapshot: A snapshot that has the owners of blocks.
        device: The index of the device's trace.
        history: The device's history; None: it is unknown.
        entry: An entry of `history.usage`; None: the end.
    """
    blocks = snapshot.blocks
    active = np.flatnonzero(
        (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
    )
    if history is None or entry is None:
        return _usages(snapshot, active, blocks.size_bytes[active], blocks.requested_bytes[active])
    lives, alive = history.blocks, np.flatnonzero(active_at(history, entry))
    row = _rows_at_end(snapshot, device, lives, alive)
    return _usages(snapshot, row, lives.size_bytes[alive], lives.requested_bytes[alive])


def is_owned_at_end(snapshot: Snapshot, device: int, lives: Lifetimes, chosen: Column) -> Column:
    """Return for each chosen block whether a model or an optimizer has it at the end: bool."""
    row = _rows_at_end(snapshot, device, lives, chosen)
    category = np.where(row < 0, 0, snapshot.blocks.category[row])
    owned = [
        key for key in np.unique(category).tolist() if snapshot.strings[key] not in ("", UNKNOWN)
    ]
    is_owned: Column = np.isin(category, owned)
    return is_owned


def has_category_at_end(snapshot: Snapshot, device: int, lives: Lifetimes, category: str) -> Column:
    """Return for each block of a history whether the file has it in this category: bool.

    Blocks that were freed before the file was written are in no category.
    """
    row = _rows_at_end(snapshot, device, lives, np.arange(len(lives)))
    known = np.where(row < 0, 0, snapshot.blocks.category[row])
    names = [key for key in np.unique(known).tolist() if snapshot.strings[key] == category]
    found: Column = np.isin(known, names) & (row >= 0)
    return found


def _rows_at_end(snapshot: Snapshot, device: int, lives: Lifetimes, chosen: Column) -> Column:
    """Return for each chosen block its row in the snapshot's blocks; -1 if it was freed before."""
    blocks = snapshot.blocks
    active = np.flatnonzero(
        (blocks.state != INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
    )
    row = np.full(len(chosen), -1)
    exists = lives.free_event[chosen] == len(snapshot.traces[device])
    by_address = active[np.argsort(blocks.address[active], kind="stable")]
    row[exists] = by_address[
        np.searchsorted(blocks.address[by_address], lives.address[chosen[exists]])
    ]
    return row


def _usages(
    snapshot: Snapshot, row: Column, size_bytes: Column, requested_bytes: Column
) -> list[CategoryUsage]:
    """Return the usage of blocks by category; `row`: their row in the snapshot's blocks, or -1."""
    blocks, strings = snapshot.blocks, snapshot.strings
    # -1 stands for blocks that were freed later, and 0 for unknown ones.
    category = np.where(row < 0, -1, blocks.category[row].astype(np.int64))
    for key in np.unique(category[category > 0]).tolist():
        if strings[key] == UNKNOWN:
            category[category == key] = 0
    owner = np.where(row < 0, 0, blocks.owner[row].astype(np.int64))
    found = []
    for key in np.unique(category).tolist():
        chosen = category == key
        texts, sums = sum_by_key(owner[chosen], size_bytes[chosen], requested_bytes[chosen], 1)
        owners = [
            Owner(strings[text], *total)
            for text, *total in zip(texts.tolist(), *(c.tolist() for c in sums), strict=True)
            if text
        ]
        found.append(
            CategoryUsage(
                category=FREED_LATER if key < 0 else strings[key] or UNKNOWN,
                size_bytes=int(size_bytes[chosen].sum()),
                requested_bytes=int(requested_bytes[chosen].sum()),
                count=int(np.count_nonzero(chosen)),
                owners=sorted(owners, key=lambda owner: (-owner.size_bytes, owner.name)),
            )
        )
    return sorted(found, key=lambda usage: -usage.size_bytes)
