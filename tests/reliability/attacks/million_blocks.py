"""A million live blocks, and more than the table of live blocks has room for.

The first part uses the recorder without an allocator: blocks are reported at made-up addresses, 5 %
more than the bound, and the growth of the process is compared with the documented bounds. The
second part, which needs a larger budget, has the same number of real tensors. All blocks are then
freed.
"""

import gc
import time
from pathlib import Path
from typing import Any

import cases
import torch
from attack import Budget, Found
from cases import Case
from memory import reset_peak, status_bytes

from pytracer import Tracer, _core
from pytracer.reading import load

PROMISE = (
    "With 1,048,576 live blocks and more, memory stays within the documented bounds; blocks "
    "beyond the bound are counted as live_dropped, and everything else about the blocks is exact."
)
DEVICE = "cpu"
SECONDS = 30
BOUND = 1_048_576
MORE = 50_000
ENTRIES = 100_000
STACK_BYTES = 2**20
BYTES_PER_EVENT, BYTES_PER_BLOCK = 64, 40
SLACK_BYTES = 4 * 2**20  # the last doubling of index tables, and the C library's heap
REAL_SECONDS = 10.0  # the smallest budget for real tensors
MIB = 2**20


def attack(budget: Budget) -> Found:
    return cases.attack_by_cases(__name__, budget, "live blocks", 3600)


def size(number: int) -> int:
    """Return the bytes of a block, by its number."""
    return 1 + number % 1000


class Blocks:
    """Blocks that are reported to the recorder, without an allocator."""

    def allocate(self, count: int) -> None:
        record = _core.testing.record
        for number in range(count):
            record(0, 2**40 + 512 * number, size(number))

    def free(self, count: int) -> None:
        record = _core.testing.record
        for number in range(count):
            record(2, 2**40 + 512 * number, 0)


class Tensors:
    """Blocks of torch's allocator."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def allocate(self, count: int) -> None:
        empty, uint8 = torch.empty, torch.uint8
        self.kept = [empty(size(number), dtype=uint8) for number in range(count)]

    def free(self, count: int) -> None:
        self.kept.clear()


def fill(name: str, blocks: Blocks | Tensors, path: Path, found: Found) -> None:
    """Allocate more blocks than the table has room for, check the recorder, and free them."""
    count = BOUND + MORE
    kept = sum(map(size, range(BOUND)))
    tracer = Tracer(
        device="cpu", trace_alloc_max_entries=ENTRIES, max_stack_bytes=STACK_BYTES
    ).start()
    gc.collect()
    before = reset_peak()
    begin = time.monotonic()
    blocks.allocate(count)
    per_block = (time.monotonic() - begin) / count
    found.highest(f"longest allocation of a {name}, us, on average", per_block * 1e6)
    bound = ENTRIES * BYTES_PER_EVENT + BOUND * BYTES_PER_BLOCK + STACK_BYTES + SLACK_BYTES
    if isinstance(blocks, Blocks):
        grown = status_bytes("VmRSS") - before
        found.check(grown <= bound, f"{name}: the process grew by {grown:,} bytes, not {bound:,}")
        found.highest("most growth for a full table and ring, MiB", grown / MIB)
        found.highest("most growth that is allowed, MiB", bound / MIB)
    (device,) = tracer.stats()["devices"]
    expected = {
        "live_blocks": BOUND,
        "live_block_bytes": kept,
        "live_dropped": MORE,
        "recorded": BOUND,
        "held": ENTRIES,
        "overwritten": BOUND - ENTRIES,
    }
    actual = {key: device[key] for key in expected}
    found.check(actual == expected, f"{name}: counts are {actual}, not {expected}")
    within = device["live_table_bytes"] <= device["max_live_table_bytes"] == BOUND * BYTES_PER_BLOCK
    found.check(within, f"{name}: {device['live_table_bytes']:,} bytes of live blocks")
    dump(name, tracer, path, kept, found)
    blocks.free(count)
    (device,) = tracer.stats()["devices"]
    expected = {"live_blocks": 0, "live_block_bytes": 0, "recorded": 2 * BOUND}
    expected["unknown_frees"] = MORE
    actual = {key: device[key] for key in expected}
    found.check(actual == expected, f"{name}: after all frees counts are {actual}, not {expected}")
    tracer.stop()
    found.tried += count


def dump(name: str, tracer: Any, path: Path, kept: int, found: Found) -> None:
    """Write a file, measure its memory, and read it."""
    objects = len(gc.get_objects())
    before = reset_peak()
    begin = time.monotonic()
    tracer.dump(path)
    found.highest(f"longest dump of a million {name}s, s", time.monotonic() - begin)
    taken = status_bytes("VmHWM") - before
    # 48 bytes for a live block, 80 for a stack and a frame; buffers of 192 KiB for events
    # and 256 KiB for output. What autograd keeps is found in a list of all of Python's objects and
    # in one of all tensors, which have 9 bytes for each.
    # Who holds memory is searched for 20,000 tensors, among up to 90,000 other objects.
    holders = 20 * MIB
    bound = BOUND * BYTES_PER_BLOCK + 18 * objects + holders + MIB // 2 + SLACK_BYTES
    found.check(taken <= bound, f"{name}: the dump took {taken:,} bytes, not {bound:,}")
    found.highest(f"most memory of such a dump, {name}s, MiB", taken / MIB)
    found.highest(f"most bytes of such a file, {name}s, MiB", path.stat().st_size / MIB)
    snapshot = load(path)
    path.unlink()
    state = (len(snapshot.blocks), int(snapshot.blocks.size_bytes.sum()))
    found.check(state == (BOUND, kept), f"{name}: the file has {state}, not {(BOUND, kept)}")
    distinct = len(set(snapshot.blocks.address.tolist()))
    found.check(distinct == BOUND, f"{name}: the file has {distinct} addresses")
    found.check(bool(snapshot.blocks.stack.all()), f"{name}: blocks have no stack")
    about = snapshot.metadata.device(0)
    found.check(about.live_dropped == MORE, f"{name}: the file says {about}")


def case(case: Case) -> Found:
    found = Found()
    gc.disable()
    begin = time.monotonic()
    fill("block", Blocks(), case.path / "blocks.pickle", found)
    if case.seconds >= REAL_SECONDS:
        fill("tensor", Tensors(), case.path / "tensors.pickle", found)
    else:
        found.skipped.append(f"a million real tensors: the budget is below {REAL_SECONDS:g} s")
    found.highest("longest case, s", time.monotonic() - begin)
    return found
