"""Allocators after random operations, and their snapshots: each kind of allocator by name."""

import random
from typing import Any

from reference_allocator import Allocator
from reference_history import MIB, Rules
from reference_reader import convert

from pytracer.reading.snapshot import Snapshot

DIVISIONS = {20 + i: 8 if i < 2 else 4 for i in range(16)}
# name: rules, whether segments expand ("random": it changes), the alignment of addresses
ALLOCATORS: dict[str, tuple[Rules, Any, int]] = {
    "segments": (Rules(), False, 0),
    "expandable": (Rules(), True, 0),
    "toggled": (Rules(toggled=True), "random", 0),
    "max-split": (Rules(max_split=24 * MIB), False, 0),
    "max-split-toggled": (Rules(max_split=24 * MIB, toggled=True), "random", 0),
    "divisions": (Rules(divisions=DIVISIONS), False, 0),
    "npu": (Rules(padding=32, aligned=True), False, 0),
    "npu-unpadded": (Rules(aligned=True), False, 0),  # from CANN 9.1.0 on
    "npu-toggled": (Rules(padding=32, toggled=True, aligned=True), "random", 16384),
    "cpu": (Rules(unit=1), False, 0),
}


def used_allocator(name: str, seed: int, steps: int = 400, keeps_usage: bool = True) -> Allocator:
    """Return an allocator after `steps` random operations."""
    rules, expands, aligned = ALLOCATORS[name]
    rng = random.Random(seed)
    allocator = Allocator(rules, aligned, keeps_usage)
    allocator.expands = expands is True
    live: list[int] = []
    pending: list[int] = []
    max_live = rng.choice((5, 20, 60))
    for _ in range(steps):
        kind = rng.random()
        if kind < 0.03:
            allocator.empty_cache()
        elif kind < 0.05 and expands == "random":
            allocator.expands = rng.random() < 0.5
        elif kind < 0.15 and pending:
            allocator.complete(pending.pop(rng.randrange(len(pending))))
        elif live and (len(live) > max_live or rng.random() < 0.48):
            address = live.pop(rng.randrange(len(live)))
            waits = rng.random() < 0.2 and rules.unit > 1
            allocator.free(address, waits)
            if waits:
                pending.append(address)
        else:
            pool = rng.choice([(0, 0)] * 6 + [(0, 1), (2, 0)])
            live.append(allocator.malloc(size(rng), rng.choice((0, 0, 0, 7)), pool))
    return allocator


def size(rng: random.Random) -> int:
    return rng.choice(
        (
            rng.randrange(1, 3000),
            512 * rng.randrange(1, 2000),
            rng.randrange(1, MIB),
            rng.randrange(MIB, 12 * MIB),
            MIB // 4 * rng.randrange(4, 60),
            20 * MIB - rng.randrange(0, 2 * MIB),
            rng.randrange(10 * MIB, 50 * MIB),
        )
    )


def snapshot_of(allocator: Allocator, name: str, first: int = 0, **metadata: Any) -> Snapshot:
    """Return the snapshot of an allocator whose ring begins with the event number `first`."""
    rules, expands, _ = ALLOCATORS[name]
    limit = rules.max_split
    backend = name.split("-")[0] if name[:3] in ("npu", "cpu") else "cuda"
    return convert(
        {
            "segments": allocator.state(),
            "device_traces": [allocator.events[first:]],
            "allocator_settings": {
                "max_split_size": limit if limit < 2**63 else -1,
                "expandable_segments": bool(expands),
                "roundup_power2_divisions": {
                    str(2**i): rules.divisions.get(20 + i, 0) for i in range(16)
                },
            },
            "pytracer": {
                "backends": [backend],
                "devices": [{"index": 0, "is_cpu": backend == "cpu"}],
                **metadata,
            },
        },
        "a.pickle",
    )
