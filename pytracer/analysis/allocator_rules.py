"""The rules by which a device's allocator sized blocks, as far as a file shows them."""

from typing import Any

import numpy as np

from pytracer.reading.snapshot import SEGMENT_MAP, SEGMENT_UNMAP, Column, Snapshot

PADDING_BYTES = 32  # torch_npu's, before CANN 9.1.0
MIN_BLOCK_BYTES = 512
SMALL_BYTES = 2**20  # larger requests are served by the large pool
UNLIMITED = 2**64 - 1
PAGE_BYTES = 20 * 2**20
"""The unit of expandable segments of the large pool, and the size of other segments for requests of
1 to 10 MiB."""
UNIT_BYTES = 2 * 2**20
"""The unit of the sizes of larger segments, and the size of segments of the small pool."""
INTERVALS = 16  # roundup_power2_divisions has one value for each power of two from 1 MiB


def allocator_rules(
    snapshot: Snapshot, device: int, segments: Column, blocks: Column
) -> dict[str, Any]:
    """Return the rules, with the names of csrc/reading/allocator_rules.h.

    Args:
        segments, blocks: The indices of the device's segments, and of its blocks that are not free.
    """
    settings = snapshot.allocator_settings
    # Each segment of the CPU, and of pinned host memory, has one block of the same size.
    is_whole = snapshot.backend(device) in ("cpu", "host")
    actions = snapshot.traces[device].action
    expandable = snapshot.segments.is_expandable
    max_split = _integer(settings.get("max_split_size"))
    rules: dict[str, Any] = {
        "has_pools": not is_whole,
        "may_expand": not is_whole
        and bool(
            settings.get("expandable_segments") is True
            or np.any((actions == SEGMENT_MAP) | (actions == SEGMENT_UNMAP))
            or np.any(expandable[segments])
        ),
        "max_split_bytes": max_split if 0 < max_split < UNLIMITED else UNLIMITED,
        "divisions": _divisions(snapshot),
    }
    if is_whole:
        return rules | {
            "padding_bytes": 0,
            "is_padding_known": True,
            "aligns": False,
            "are_known": True,
        }

    size = snapshot.blocks.size_bytes[blocks]
    requested = snapshot.blocks.requested_bytes[blocks]
    backends = snapshot.metadata.backends
    # Files of old torch have no requested sizes: the reader substitutes the blocks' sizes.
    has_requested = backends is not None or bool(np.any(requested != size))
    unpadded = _rounded(requested, rules["divisions"])
    padded = _rounded(requested + PADDING_BYTES, rules["divisions"])
    # In the small pool and in expandable segments, a block has exactly the rounded size.
    is_least = expandable[snapshot.blocks.segment[blocks]] | (padded <= SMALL_BYTES)
    is_unpadded = has_requested and bool(np.any(size < padded))
    is_padded = not is_unpadded and bool(np.any(is_least & (size != unpadded) & (size == padded)))
    if backends is not None:
        is_npu = "npu" in backends
    elif is_unpadded or is_padded:
        is_npu = is_padded
    else:
        # The last resort: torch_npu's own recorder writes neither times nor settings.
        is_npu = not settings and len(actions) > 0 and not snapshot.has_times(device)
    least = padded if is_npu and not is_unpadded else unpadded
    # The allocator splits off a remainder of more than 1 MiB, except from the largest blocks.
    too_large = (unpadded < rules["max_split_bytes"]) & (size - least > SMALL_BYTES)
    unlikely = (size < least) | (is_least & (size > least)) | too_large
    return rules | {
        "padding_bytes": PADDING_BYTES if least is padded else 0,
        "is_padding_known": not is_npu or is_unpadded or is_padded,
        "aligns": is_npu,
        "are_known": not has_requested or not np.any(unlikely),
    }


def may_be_rounded(snapshot: Snapshot, size_bytes: int, free_bytes: int) -> bool:
    """Return whether the settings round a request that would fit up to a size that does not."""
    return bool(_rounded(np.array(free_bytes), _divisions(snapshot)) == size_bytes)


def _divisions(snapshot: Snapshot) -> list[int]:
    found = snapshot.allocator_settings.get("roundup_power2_divisions")
    values = found if isinstance(found, dict) else {}
    return [min(max(_integer(values.get(str(2**i))), 0), 2**32) for i in range(INTERVALS)]


def _rounded(size: Column, divisions: list[int]) -> Column:
    """Return what `AllocatorRules::rounded` returns; any value for impossible sizes."""
    size = np.clip(size, MIN_BLOCK_BYTES, 2**61)
    power = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
    parts = np.array(divisions, np.int64)[np.clip(power - 20, 0, INTERVALS - 1)]
    divided = (parts > 1) & (size > MIN_BLOCK_BYTES * parts)
    part = (1 << power) >> (np.frexp(np.maximum(parts, 1).astype(np.float64))[1] - 1)
    unit = np.where(divided, part, MIN_BLOCK_BYTES)
    rounded: Column = -(-size // unit) * unit
    return rounded


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
