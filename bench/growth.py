"""How the cost of an event grows: with the ring, with the distinct stacks, with the live blocks.

Nanoseconds added to a pair (a block taken and given back through the real allocator: on
accelerators by its raw interface, on the CPU by `torch.empty`) at 20 Python frames, against the
same code in the same process without recording, but with our hook attached; median and least ..
most over the processes. Each curve varies one thing, and gives what is added the first time, and
from then on:

- events: while a ring of that size fills, and then when it is full. 100 stacks.
- stacks: when the stacks come for the first time, each allocation's and each free's its own, and
  when all are known. A ring of 10,000, full before.
- live: while that many blocks are taken, and then given back, in random order; and when a block
  chosen at random of that many is replaced. A full ring of 10,000, one place in
  the program.

Where a curve rises, "off" beside it tells whether the allocator's own does: both look up a block by
its address, and run out of the processor's caches. A flat curve is one that stays within its range.
Few stacks or blocks at first are few pairs, so that what the first events touch shows. The largest
size of each curve gets a third of the rounds.
"""

import functools
import gc
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from dump import ENOUGH_STACK_BYTES, allocating_paths
from harness import arguments, at_depth, in_own_process, save, summary
from pairs import raw_interface
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pytracer

CURVES = {
    "events": (10_000, 100_000, 1_000_000, 10_000_000),
    "stacks": (10, 100, 1_000, 10_000, 100_000, 1_000_000),
    "live": (1_000, 10_000, 100_000, 1_000_000),
}
FRAMES, RING = 20, 10_000
PAIRS = 50_000  # of a loop that is timed, at least where there are so many
MOST_REPEATS = 5

Figures = dict[str, list[float]]


def ns(run: Callable[[], object], pairs: int) -> float:
    """Of one pair."""
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) / pairs


def repeats(size: int) -> int:
    """Fewer of what takes long."""
    return max(1, min(MOST_REPEATS, 300_000 // size))


def tracer(device: str, ring: int = RING) -> pytracer.Tracer:
    """A fresh one, in place of all others: nothing is known to it."""
    gc.collect()
    return pytracer.Tracer(
        device=device,
        context="all",
        stack_depth=64,
        trace_alloc_max_entries=ring,
        max_stack_bytes=ENOUGH_STACK_BYTES,
    )


def paths(device: str, number: int) -> Callable[[int], None]:
    """Takes and gives back a block on so many paths, and that so many times."""
    # The module, `worker`, the curve's function, `ns`, and `run` are frames too.
    once = allocating_paths(number, FRAMES - 5, *raw_interface(device))

    def run(times: int) -> None:
        for _ in range(times):
            once()

    return run


def events(device: str, size: int) -> Iterable[tuple[float, float, float, float]]:
    number = 50
    run = paths(device, number)
    filling = math.ceil(size / (2 if device == "cpu" else 3) / number)
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
        # The second turn with recording is slower than those to come: the cache of walks forgets
        # when it grows. All run from one line, since that is in the stacks too.
        for turn, times in enumerate((many, 1, 1, 1, many)):
            if turn == 1:
                current.start()
                fill(RING)
            found.append(ns(functools.partial(run, times), times * number))
        current.stop()
        known = current.stats()["stacks"]["stacks"]
        del current  # else the next one knows the stacks
        assert known >= size, f"only {known} stacks found room"
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
    """Nanoseconds of a pair without recording, and added: the first time, and from then on."""
    # Without the first turn, in which all is new to the allocator and the interpreter too.
    _, *turns = {"events": events, "stacks": stacks, "live": live}[curve](device, size)
    return {
        "off_ns": statistics.median(off for _, _, off, _ in turns),
        "first_added_ns": statistics.median(first - off for off, first, _, _ in turns),
        "added_ns": statistics.median(then - off for _, _, off, then in turns),
    }


def main() -> None:
    options = arguments(__doc__, "growth_{device}.json", ("cpu", "cuda", "npu"), rounds=3)
    points = [(curve, size) for curve, sizes in CURVES.items() for size in sizes]
    results: dict[tuple[str, int], list[dict[str, float]]] = {point: [] for point in points}
    turns = [
        (curve, size)
        for turn in range(options.rounds)
        for curve, size in points
        if size < max(CURVES[curve]) or turn % 3 == 0
    ]
    for point in track(turns, "measuring", console=Console(stderr=True)):
        results[point].append(in_own_process(__file__, options.device, *point))
    table = Table(title=f"ns of a pair on {options.device}, and added to it")
    for column in ("curve", "size", "off", "added at first", "added from then on"):
        table.add_column(column, justify="left" if column == "curve" else "right")
    figures = []
    for curve, size in points:
        found = results[curve, size]
        figure = {key: summary([each[key] for each in found]) for key in found[0]}
        figures.append({"curve": curve, "size": size, **figure})
        row = [curve, f"{size:,}", f"{figure['off_ns']['median']:.0f}"]
        for key in ("first_added_ns", "added_ns"):
            least, most = figure[key]["min"], figure[key]["max"]
            row.append(f"{figure[key]['median']:+.0f} ({least:+.0f} .. {most:+.0f})")
        table.add_row(*row, end_section=size == CURVES[curve][-1])
    Console().print(table)
    save(options, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
