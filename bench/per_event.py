"""What recording adds to an allocation and its free, through torch's CPU allocator.

Each figure: `torch.empty(128)` and dropping it, in a loop, at a given number of Python frames. Each
configuration runs in processes of its own, in turn; the median over the rounds is given, and what
it is above "off".
"""

import json
import statistics
import sys
import time

from harness import arguments, at_depth, in_own_process, save, summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

FRAMES = (5, 40)
CONFIGURATIONS = ("off", "attached, off", "no stacks", "state", "alloc", "all")
CONTEXT = {"no stacks": None, "state": "state", "alloc": "alloc", "all": "all"}
PAIRS, REPEATS = 20_000, 9


def worker(configuration: str, frames: int) -> float:
    """Nanoseconds a pair: the median of the repeats."""
    import torch

    import pytracer

    def pairs() -> float:
        start = time.perf_counter_ns()
        for _ in range(PAIRS):
            torch.empty(128)
        return (time.perf_counter_ns() - start) / PAIRS

    if configuration != "off":
        tracer = pytracer.Tracer(
            device="cpu", stack_depth=64, context=CONTEXT.get(configuration, "all")
        ).start()
        if configuration == "attached, off":
            tracer.stop()
    at_depth(frames, pairs)
    times = []
    for _ in range(REPEATS):  # not a comprehension, which is a frame of its own before 3.12
        times.append(at_depth(frames, pairs))
    return statistics.median(times)


def main() -> None:
    options = arguments(__doc__, "per_event_cpu.json")
    times: dict[tuple[str, int], list[float]] = {}
    rounds = [(c, f) for _ in range(options.rounds) for f in FRAMES for c in CONFIGURATIONS]
    for configuration, frames in track(rounds, "measuring", console=Console(stderr=True)):
        result = in_own_process(__file__, configuration, frames)
        times.setdefault((configuration, frames), []).append(result)
    table = Table(title="ns per allocation and free (median of processes)")
    table.add_column("configuration")
    for frames in FRAMES:
        table.add_column(f"{frames} frames", justify="right")
        table.add_column("added", justify="right")
    figures = []
    for configuration in CONFIGURATIONS:
        row = [configuration]
        for frames in FRAMES:
            ns = summary(times[configuration, frames])
            added = ns["median"] - statistics.median(times["off", frames])
            row += [f"{ns['median']:.0f}", f"{added:+.0f}"]
            figures.append({"configuration": configuration, "frames": frames, "ns": ns})
            figures[-1]["added_ns"] = added
        table.add_row(*row)
    Console().print(table)
    save(options.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
