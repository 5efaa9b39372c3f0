"""Programs for the reference allocator that need different settings, and snapshots of them."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reference_allocator import Allocator
from reference_history import MIB, Rules


def varying_lengths(allocator: Allocator) -> None:
    """Run layers forward and backward, for sequences of other lengths."""
    weights = [allocator.malloc(int(7.3 * MIB)) for _ in range(10)]
    for length in (5, 8, 5.5, 7.3, 6.1, 8, 4.4, 7.7):
        layers = [
            (allocator.malloc(int(length * 2 * MIB)), allocator.malloc(int(length * 5.3 * MIB)))
            for _ in range(10)
        ]
        logits = allocator.malloc(int(length * 31 * MIB))
        for pair in reversed(layers):
            gradient = allocator.malloc(int(length * 2.1 * MIB))
            for address in pair:
                allocator.free(address)
            allocator.free(gradient)
        allocator.free(logits)
    for address in weights:
        allocator.free(address)


def pinned_segments(allocator: Allocator) -> None:
    """Leave a block in each of many segments, then need much."""
    first = [allocator.malloc(80 * MIB) for _ in range(20)]
    for address in first:
        allocator.free(address)
    held = [allocator.malloc(45 * MIB) for _ in range(20)]
    allocator.malloc(700 * MIB)
    del held


def constant(allocator: Allocator) -> None:
    """Repeat equal steps."""
    for _ in range(20):
        step = [allocator.malloc(64 * MIB) for _ in range(10)]
        for address in step:
            allocator.free(address)


def growing(allocator: Allocator) -> None:
    """Need a little more in each step, so that no cached block is large enough."""
    for i in range(24):
        step = [allocator.malloc((24 + 3 * i) * MIB + 1) for _ in range(6)]
        for address in step:
            allocator.free(address)


def just_above_a_megabyte(allocator: Allocator) -> None:
    """Allocate many blocks that share segments of 20 MiB, and keep every tenth."""
    blocks = [allocator.malloc(MIB + 4096 * (i % 7 + 1)) for i in range(300)]
    for i, address in enumerate(blocks):
        if i % 10:
            allocator.free(address)
    for _ in range(8):
        allocator.malloc(30 * MIB)


def nearly_equal(allocator: Allocator) -> None:
    """Allocate sizes that differ by a little, in another order each time."""
    rng = random.Random(5)
    for _ in range(12):
        sizes = [rng.randrange(52 * MIB, 63 * MIB) for _ in range(8)]
        step = [allocator.malloc(size) for size in sizes]
        rng.shuffle(step)
        for address in step:
            allocator.free(address)


def large_and_small(allocator: Allocator) -> None:
    """Let small blocks split the large ones that return."""
    rng = random.Random(6)
    held: list[int] = []
    for _ in range(30):
        large = allocator.malloc(300 * MIB)
        allocator.free(large)
        held += [allocator.malloc(rng.randrange(2 * MIB, 18 * MIB)) for _ in range(4)]
        if len(held) > 40:
            for _ in range(20):
                allocator.free(held.pop(rng.randrange(len(held))))


def phases(allocator: Allocator) -> None:
    """Generate with a cache of keys and values, then train, as in reinforcement learning."""
    for i in range(4):
        cache = [allocator.malloc((100 + 7 * i) * MIB) for _ in range(8)]
        for address in cache:
            allocator.free(address)
        training = [allocator.malloc((33 + 2 * i) * MIB) for _ in range(20)]
        for address in training:
            allocator.free(address)


def mixed(allocator: Allocator) -> None:
    _at_random(allocator, 7, 20, (1, 200))


def two_streams(allocator: Allocator) -> None:
    _at_random(allocator, 8, 16, (1, 120), streams=(0, 7))


def _at_random(
    allocator: Allocator,
    seed: int,
    live: int,
    sizes_mib: tuple[int, int],
    streams: tuple[int, ...] = (0,),
) -> None:
    rng = random.Random(seed)
    held: list[int] = []
    for _ in range(400):
        size = rng.randrange(sizes_mib[0] * MIB, sizes_mib[1] * MIB)
        held.append(allocator.malloc(size, rng.choice(streams)))
        while len(held) > live:
            allocator.free(held.pop(rng.randrange(len(held))))


WORKLOADS: list[Callable[[Allocator], None]] = [
    varying_lengths,
    pinned_segments,
    constant,
    growing,
    just_above_a_megabyte,
    nearly_equal,
    large_and_small,
    phases,
    mixed,
    two_streams,
]


def content(
    workload: Callable[[Allocator], None], limit_bytes: int | None = None, rank: int = 0
) -> dict[str, Any]:
    """Run a program with the reference allocator, and return the snapshot's content.

    Args:
        workload: The program.
        limit_bytes: What the file says that the allocator could reserve; None: it says nothing.
        rank: The rank in the metadata.
    """
    allocator = Allocator(Rules(), keeps_usage=False)
    workload(allocator)
    segments = allocator.state()
    reserved = sum(segment["total_size"] for segment in segments)
    device: dict[str, Any] = {"index": 0, "is_cpu": False, "reserved_bytes": reserved}
    if limit_bytes is not None:
        device["free_bytes"] = limit_bytes - reserved
    return {
        "segments": segments,
        "device_traces": [allocator.events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "pytracer": {
            "backends": ["cuda"],
            "torch": "2.12.1+cu130",
            "rank": rank,
            "devices": [device],
        },
    }


def write(
    path: Path,
    workload: Callable[[Allocator], None],
    limit_bytes: int | None = None,
    rank: int = 0,
) -> Path:
    """Write the snapshot of a program (see `content`)."""
    path.write_bytes(pickle.dumps(content(workload, limit_bytes, rank)))
    return path
