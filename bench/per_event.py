"""What recording adds to an allocation and its free, through torch's CPU allocator.

Each figure: `torch.empty(128)` and dropping it, in a loop, at a given number of Python frames. Each
configuration runs in processes of its own, in turn. In each process the loop runs by turns without
recording and with it, so that a machine that changes its speed changes both; what is added is the
median of the differences of neighbours. "attached" is the hook with recording off, against the time
before it was attached.
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
CONTEXTS = {"no stacks": None, "state": "state", "alloc": "alloc", "all": "all"}
CONFIGURATIONS = ("attached", *CONTEXTS)
PAIRS, REPEATS = 10_000, 15


def worker(configuration: str, frames: int) -> dict[str, float]:
    """Nanoseconds a pair without recording, and what the configuration adds."""
    import torch

    import pytracer

    def pairs() -> float:
        start = time.perf_counter_ns()
        for _ in range(PAIRS):
            torch.empty(128)
        return (time.perf_counter_ns() - start) / PAIRS

    tracer = pytracer.Tracer(
        device="cpu", stack_depth=64, context=CONTEXTS.get(configuration, "all")
    )
    off, on = [], []
    if configuration == "attached":
        for _ in range(REPEATS + 1):
            off.append(at_depth(frames, pairs))
        tracer.start().stop()
        for _ in range(REPEATS + 1):
            on.append(at_depth(frames, pairs))
    else:
        tracer.start().stop()
        for _ in range(REPEATS + 1):
            off.append(at_depth(frames, pairs))
            tracer.start()
            on.append(at_depth(frames, pairs))
            tracer.stop()
    differences = [with_it - without for with_it, without in zip(on[1:], off[1:], strict=True)]
    return {"off": statistics.median(off[1:]), "added": statistics.median(differences)}


def main() -> None:
    options = arguments(__doc__, "per_event_cpu.json")
    results: dict[tuple[str, int], list[dict[str, float]]] = {}
    rounds = [(c, f) for _ in range(options.rounds) for f in FRAMES for c in CONFIGURATIONS]
    for configuration, frames in track(rounds, "measuring", console=Console(stderr=True)):
        result = in_own_process(__file__, configuration, frames)
        results.setdefault((configuration, frames), []).append(result)
    table = Table(title="ns added to an allocation and its free (median, least .. most)")
    table.add_column("configuration")
    for frames in FRAMES:
        table.add_column(f"{frames} frames", justify="right")
    figures = []
    for configuration in CONFIGURATIONS:
        row = [configuration]
        for frames in FRAMES:
            found = results[configuration, frames]
            added = summary([each["added"] for each in found])
            row.append(f"{added['median']:+.0f} ({added['min']:+.0f} .. {added['max']:+.0f})")
            off = summary([each["off"] for each in found])
            figures.append({"configuration": configuration, "frames": frames})
            figures[-1] |= {"added_ns": added, "off_ns": off}
        table.add_row(*row)
    Console().print(table)
    base = statistics.median(each["off"] for found in results.values() for each in found)
    print(f"without recording: {base:.0f} ns")
    save(options.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
