"""Measure how the cost of an event grows with the ring, the distinct stacks and the live blocks.

The figures are nanoseconds added to a pair: an allocation and its free through the real allocator
(on accelerators by its raw interface, on the CPU by `torch.empty`) at 20 Python frames. They are
relative to the same code in the same process without recording, but with pytracer's hook attached.
Each is given as the median and minimum .. maximum over the processes. Each curve varies one
quantity, and has two figures: the cost at first, and the cost from then on.

- events: at first, a ring of this size fills; from then on, it is full. 100 stacks.
- stacks: at first, every stack is new, and each allocation and each free has its own; from then on,
  all stacks are known. A ring of 10,000, which is already full.
- live: at first, so many blocks are allocated and then freed in random order; from then on, random
  blocks of so many are replaced. A full ring of 10,000, and one call site.

Where a curve rises, the column "off" next to it shows whether the allocator's own cost rises too:
both look up a block by its address, and exceed the processor's caches. A curve counts as flat when
its values stay within their range. With few stacks or blocks, the first figure comes from few
pairs, so the cost of touching memory for the first time is visible. The largest size of each curve
gets a third of the rounds.
"""

import functools
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

from dump import ENOUGH_STACK_BYTES, allocating_paths
from harness import arguments, at_depth, in_own_process, in_turn, new_table, save, start, summary
from pairs import raw_interface

import pytracer

CURVES = {
    "events": (10_000, 100_000, 1_000_000, 10_000_000),
    "stacks": (10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "live": (1_000, 10_000, 100_000, 1_000_000),
}
FRAMES, RING = 20, 10_000
PAIRS = 50_000  # the pairs of a timed loop; fewer where the size of the curve allows no more
MOST_REPEATS = 5

Figures = dict[str, list[float]]


def ns(run: Callable[[], object], pairs: int) -> float:
    """Return the nanoseconds of one pair."""
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) / pairs


def repeats(size: int) -> int:
    """Return the number of repetitions, which is smaller for large sizes."""
    return max(1, min(MOST_REPEATS, 300_000 // size))


def tracer(device: str, ring: int = RING) -> pytracer.Tracer:
    """Return a new tracer with an empty stack table, after collecting all earlier tracers."""
    gc.collect()
    return pytracer.Tracer(
        device=device,
        stack_depth=64,
        trace_alloc_max_entries=ring,
        max_stack_bytes=ENOUGH_STACK_BYTES,
    )


def paths(device: str, number: int) -> Callable[[int], None]:
    """Return a function that allocates and frees on `number` paths, a given number of times."""
    # The frames of the module, `worker`, the curve's function, `ns` and `run` are the other five.
    once = allocating_paths(number, FRAMES - 5, *raw_interface(device))

    def run(times: int) -> None:
        for _ in range(times):
            once()

    return run


def events(device: str, size: int) -> Iterable[tuple[float, float, float, float]]:
    number = 50
    run = paths(device, number)
    filling = math.ceil(size / 2 / number)  # the events of a pair
    full = min(filling, PAIRS // number)
    for _ in range(repeats(size) + 1):
        off = ns(functools.partial(run, full), full * number)
        with tracer(device, size):
            first = ns(functools.partial(run, filling), filling * number)
            then = ns(functools.partial(run, full), full * number)
        yield off, first, off, then


def stacks(device: str, size: int) -> Iterable[tuple[float, float, float, float]]:
    number = size // 2
    run, fill = paths(device, number), paths(device, 1)
    many = math.ceil(PAIRS / number)
    for _ in range(repeats(size) + 1):
        current, found = tracer(device), []
        # The second turn with recording is slower than later turns, because the cache of walks
        # loses its entries when it grows. All turns run from one line, which is part of the stacks.
        for turn, times in enumerate((many, 1, 1, 1, many)):
            if turn == 1:
                current.start()
                fill(RING)
            found.append(ns(functools.partial(run, times), times * number))
        current.stop()
        known = current.stats()["stacks"]["stacks"]
        del current  # otherwise the next tracer would find the stacks in the table
        assert known >= size, f"the stack table had room for only {known} of {size} stacks"
        off, first, _, _, then = found
        yield off, first, off, then


def live(device: str, size: int) -> Iterable[tuple[float, float, float, float]]:
    allocate, release = raw_interface(device)
    order = random.Random(0).sample(range(size), size)
    blocks: dict[int, Any] = {}

    def take() -> None:
        for index in range(size):
            blocks[index] = allocate()

    def replace() -> None:
        for index in order[:PAIRS]:
            release(blocks.pop(index))
            blocks[index] = allocate()

    def give_back() -> None:
        for index in order:
            release(blocks.pop(index))

    def turn() -> tuple[float, float]:
        taking = ns(functools.partial(at_depth, FRAMES, take), size)
        replacing = ns(functools.partial(at_depth, FRAMES, replace), min(size, PAIRS))
        returning = ns(functools.partial(at_depth, FRAMES, give_back), size)
        return taking + returning, replacing

    fill = paths(device, 1)
    for _ in range(repeats(size) + 1):
        without = turn()
        with tracer(device):
            fill(RING)
            recorded = turn()
        yield without[0], recorded[0], without[1], recorded[1]


def worker(device: str, curve: str, size: int) -> dict[str, float]:
    """Return the nanoseconds of a pair without recording, and those added at first and later."""
    # The first turn is left out, because it warms up the allocator and the interpreter.
    _, *turns = {"events": events, "stacks": stacks, "live": live}[curve](device, size)
    return {
        "off_ns": statistics.median(off for _, _, off, _ in turns),
        "first_added_ns": statistics.median(first - off for off, first, _, _ in turns),
        "added_ns": statistics.median(then - off for _, _, off, then in turns),
    }


def main() -> None:
    options = arguments(__doc__, "growth_{device}.json", ("cpu", "cuda", "npu"), rounds=3)
    points = [(curve, size) for curve, sizes in CURVES.items() for size in sizes]
    turns = [
        (curve, size)
        for turn in range(options.rounds)
        for curve, size in points
        if size < max(CURVES[curve]) or turn % 3 == 0
    ]
    results = in_turn(turns, lambda point: in_own_process(__file__, options.device, *point))
    columns = ("curve", "size", "off", "added at first", "added from then on")
    table = new_table(f"ns of a pair on {options.device}, and added to it", columns, columns[:1])
    figures = []
    for curve, size in points:
        found = results[curve, size]
        figure = {key: summary([result[key] for result in found]) for key in found[0]}
        figures.append({"curve": curve, "size": size, **figure})
        row = [curve, f"{size:,}", f"{figure['off_ns']['median']:.0f}"]
        for key in ("first_added_ns", "added_ns"):
            least, most = figure[key]["min"], figure[key]["max"]
            row.append(f"{figure[key]['median']:+.0f} ({least:+.0f} .. {most:+.0f})")
        table.add_row(*row, end_section=size == CURVES[curve][-1])
    save(options, figures, table)


if __name__ == "__main__":
    start(main, worker)
