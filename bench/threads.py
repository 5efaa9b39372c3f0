"""Measure the throughput of concurrently allocating threads, with and without recording.

1, 2, 4 and 8 threads allocate and free blocks for a fixed time, first all on one device, then
spread over as many devices as there are threads, if there are so many. "devices" is the number of
devices; the CPU counts as one. The figures are the pairs per second of all threads together, and
the nanoseconds of one thread's pair, including waiting for locks and cores: without recording
("off"), with pytracer, and with torch's recorder (`stacks="python"`). The ratio
compares what the two recorders added in the same round.

"C++" threads call the allocator and have no Python stack: the cost is that of the event alone, and
torch's recorder only finds that there is no stack. "Python" threads call `torch.empty` at four
frames, and run one at a time, except for the parts of torch that release the GIL.

Each configuration runs in separate processes, in turn, as in per_event.py. The table shows the
medians over the processes; the spread is in the JSON file. If there are more threads than cores,
the threads share them: the environment names the number of cores. To simulate one device for each
thread: `SIMULATED_DEVICES=8 tests/devices/simulate cuda PYTHON bench/threads.py --device cuda`.
"""

import functools
import operator
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import (
    BASE,
    arguments,
    in_own_process,
    in_turn,
    new_table,
    recorder,
    save,
    start,
    summary,
)
from pairs import SIZE_BYTES, Case, Library, added, build

THREADS = (1, 2, 4, 8)
OURS_ALL = "all"
REPEATS, RING, SECONDS, BURST = 7, 10_000, 0.04, 50


class Layout(NamedTuple):
    """The kind and number of the threads, and the number of their devices."""

    kind: str
    threads: int
    devices: int


def layouts(devices: int) -> Iterator[Layout]:
    for kind in ("C++", "Python"):
        for threads in THREADS:
            for spread in sorted({1, min(threads, devices)}):
                yield Layout(kind, threads, spread)


def python_threads(devices: list[str]) -> float:
    """Run one Python thread for each of `devices`; return the nanoseconds of a thread's pair."""
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

    threads = [threading.Thread(target=body, args=(number,)) for number in range(len(devices))]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter_ns()
    begun.set()
    time.sleep(SECONDS)
    over = True
    elapsed = time.perf_counter_ns() - start
    for thread in threads:
        thread.join()
    return elapsed * len(devices) / sum(pairs)


def device_count(device: str) -> int:
    import torch

    return 1 if device == "cpu" else int(getattr(torch, device).device_count())


def worker(device: str, configuration: str, library: str) -> list[dict[str, float]]:
    """Return the nanoseconds of a thread's pair in each layout."""
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
    with tempfile.TemporaryDirectory() as folder:
        library = build(device, Path(folder))
        rounds = recorders * options.rounds
        results = in_turn(rounds, lambda name: in_own_process(__file__, device, name, library))
    columns = ("threads", "devices", "recorder", "M pairs/s", "ns", "added", "ratio")
    table = new_table(f"Threads that allocate and free on {device}", columns, columns[2:3])
    figures = []
    for index, layout in enumerate(layouts(device_count(device))):
        table.add_section()
        added_ns = {
            name: [round_[index]["added_ns"] for round_ in found] for name, found in results.items()
        }
        pair_ns = {"off": [round_[index]["off_ns"] for all_ in results.values() for round_ in all_]}
        for name, found in results.items():
            pair_ns[name] = [round_[index]["recorded_ns"] for round_ in found]
        for name, values in pair_ns.items():
            throughput = summary([layout.threads / ns * 1e9 for ns in values])
            figure: dict[str, Any] = {**layout._asdict(), "recorder": name}
            figure |= {"pairs_per_s": throughput, "pair_ns": summary(values)}
            row = [f"{throughput['median'] / 1e6:.2f}", f"{figure['pair_ns']['median']:.0f}"]
            if name in recorders:
                figure["added_ns"] = summary(added_ns[name])
                row.append(f"{figure['added_ns']['median']:+.0f}")
            # Where threads share cores, the variation may exceed what torch's recorder adds, so
            # that no ratio is possible.
            if name == OURS_ALL and min(added_ns.get(BASE, [0])) > 0:
                figure["of_native"] = summary(
                    list(map(operator.truediv, added_ns[OURS_ALL], added_ns[BASE]))
                )
                row.append(f"{figure['of_native']['median']:.2f}")
            figures.append(figure)
            table.add_row(f"{layout.threads} {layout.kind}", str(layout.devices), name, *row)
    save(options, figures, table)


if __name__ == "__main__":
    start(main, worker)
