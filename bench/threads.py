"""Threads that allocate and free at once: what recording leaves of their throughput.

1, 2, 4 and 8 threads take blocks and give them back for a fixed time, all on one device, and each
on its own as far as there are devices: "devices" says over how many they are spread; the CPU is
one. Given are pairs a second of all threads together, and the nanoseconds of one thread's pair,
waiting for locks and cores included: without recording ("off"), with ours (`context="all"`), and
with torch's recorder (`stacks="python"`); and the ratio of what the two added in the same round.

"C++" threads call the allocator and have no Python stack: what costs there is the event alone, and
torch's recorder finds out that there is none. "Python" threads call `torch.empty` at four frames,
and are one at a time but for what torch does without the GIL.

Each configuration runs in processes of its own, in turn, as in per_event.py; medians over them are
shown, the spread is in the JSON. More threads than cores take turns: the environment says how many
cores there were. On simulated devices, with one for each thread:
`SIMULATED_DEVICES=8 tests/devices/simulate cuda PYTHON bench/threads.py --device cuda`.
"""

import functools
import json
import operator
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import BASE, arguments, in_own_process, recorder, save, summary
from pairs import SIZE_BYTES, Case, Library, added, build
from rich.console import Console
from rich.progress import track
from rich.table import Table

THREADS = (1, 2, 4, 8)
OURS_ALL = "all"
REPEATS, RING, SECONDS, BURST = 7, 10_000, 0.04, 50


class Layout(NamedTuple):
    """Which threads there are."""

    kind: str
    threads: int
    devices: int


def layouts(devices: int) -> Iterator[Layout]:
    for kind in ("C++", "Python"):
        for threads in THREADS:
            for spread in sorted({1, min(threads, devices)}):
                yield Layout(kind, threads, spread)


def python_threads(devices: list[str]) -> float:
    """Nanoseconds of a thread's pair; one thread for each of `devices`."""
    import torch

    pairs = [0] * len(devices)
    ready, begun = threading.Barrier(len(devices) + 1), threading.Event()
    over = False

    def body(number: int) -> None:
        device = torch.device(devices[number])
        ready.wait()
        begun.wait()
        while not over:
            for _ in range(BURST):
                torch.empty(SIZE_BYTES, dtype=torch.uint8, device=device)
            pairs[number] += BURST

    threads = [threading.Thread(target=body, args=(each,)) for each in range(len(devices))]
    for each in threads:
        each.start()
    ready.wait()
    start = time.perf_counter_ns()
    begun.set()
    time.sleep(SECONDS)
    over = True
    elapsed = time.perf_counter_ns() - start
    for each in threads:
        each.join()
    return elapsed * len(devices) / sum(pairs)


def device_count(device: str) -> int:
    import torch

    return 1 if device == "cpu" else int(getattr(torch, device).device_count())


def worker(device: str, configuration: str, library: str) -> list[dict[str, float]]:
    """Nanoseconds of a thread's pair in each layout."""
    import torch

    if device != "cpu":
        getattr(torch, device).init()
    extension = Library(library)
    switches = recorder(device, configuration, RING)
    cases = []
    for layout in layouts(device_count(device)):
        names = [
            device if device == "cpu" else f"{device}:{thread % layout.devices}"
            for thread in range(layout.threads)
        ]
        if layout.kind == "C++":
            loop = functools.partial(extension.pairs_in_threads, names, SECONDS)
        else:
            loop = functools.partial(python_threads, names)
        cases.append(Case(loop, *switches))
    return added(cases, REPEATS, attaches=configuration == OURS_ALL)


def main() -> None:
    options = arguments(__doc__, "threads_{device}.json", ("cpu", "cuda", "npu"), rounds=3)
    device = options.device
    recorders = [OURS_ALL] if device == "cpu" else [OURS_ALL, BASE]
    results: dict[str, list[list[dict[str, float]]]] = {each: [] for each in recorders}
    rounds = [each for _ in range(options.rounds) for each in recorders]
    with tempfile.TemporaryDirectory() as folder:
        library = build(device, Path(folder))
        for each in track(rounds, "measuring", console=Console(stderr=True)):
            results[each].append(in_own_process(__file__, device, each, library))
    table = Table(title=f"Threads that allocate and free on {device}")
    for column in ("threads", "devices", "recorder", "M pairs/s", "ns", "added", "ratio"):
        table.add_column(column, justify="left" if column == "recorder" else "right")
    figures = []
    for index, layout in enumerate(layouts(device_count(device))):
        table.add_section()
        added_ns = {
            name: [each[index]["added_ns"] for each in found] for name, found in results.items()
        }
        pair_ns = {"off": [each[index]["off_ns"] for all_ in results.values() for each in all_]}
        for name, found in results.items():
            pair_ns[name] = [each[index]["recorded_ns"] for each in found]
        for name, values in pair_ns.items():
            throughput = summary([layout.threads / ns * 1e9 for ns in values])
            figure: dict[str, Any] = {**layout._asdict(), "recorder": name}
            figure |= {"pairs_per_s": throughput, "pair_ns": summary(values)}
            row = [f"{throughput['median'] / 1e6:.2f}", f"{figure['pair_ns']['median']:.0f}"]
            if name in recorders:
                figure["added_ns"] = summary(added_ns[name])
                row.append(f"{figure['added_ns']['median']:+.0f}")
            # Where threads take turns, what torch's recorder adds may drown in that.
            if name == OURS_ALL and min(added_ns.get(BASE, [0])) > 0:
                figure["of_native"] = summary(
                    list(map(operator.truediv, added_ns[OURS_ALL], added_ns[BASE]))
                )
                row.append(f"{figure['of_native']['median']:.2f}")
            figures.append(figure)
            table.add_row(f"{layout.threads} {layout.kind}", str(layout.devices), name, *row)
    Console().print(table)
    save(options, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(*sys.argv[2:5])))
    else:
        main()
