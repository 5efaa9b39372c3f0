"""What a full ring holds in memory, and what a dump of it takes.

The ring is filled with events at 20 Python frames and 2,000 distinct stacks, while 10,000 blocks
are alive. Each size runs in processes of its own; medians over the rounds are given. A CPU event
becomes two or three of the file's (docs/design.md), so 1 M events are 2.5 M in the file.
"""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness import arguments, at_depth, in_own_process, resident_bytes, save, summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

SIZES = (10_000, 100_000, 1_000_000)
STACKS, LIVE_BLOCKS, DUMPS = 2_000, 10_000, 5


def worker(entries: int) -> dict[str, float]:
    """Bytes and seconds."""
    from pytracer import Tracer, _core

    scopes = []
    for number in range(STACKS):
        scope: dict[str, object] = {"record_pairs": _core.testing.record_pairs}
        exec(f"def f{number}(n):\n record_pairs(n, 64)", scope)
        scopes.append(scope[f"f{number}"])

    with tempfile.TemporaryDirectory() as folder:
        # The reading's own needs, and the recorder's first use, out of the way.
        with Tracer(device="cpu", trace_alloc_max_entries=1) as warm:
            warm.dump(Path(folder, "warm.pickle"))
        before = resident_bytes()
        with Tracer(device="cpu", trace_alloc_max_entries=entries) as tracer:
            for block in range(LIVE_BLOCKS):
                _core.testing.record(0, 4096 + 64 * block, 512)
            for function in scopes:
                pairs = entries // 2 // STACKS + 1
                at_depth(20, lambda function=function, pairs=pairs: function(pairs))
            held = resident_bytes() - before
            stats = tracer.stats()
            device, stacks = stats["devices"][0], stats["stacks"]
            assert device["held"] == entries
            # The high-water mark is the process's: what a dump adds shows where it passes it.
            peak_before = max(
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, resident_bytes()
            )
            path = Path(folder, "snapshot.pickle")
            seconds = []
            for _ in range(DUMPS):
                start = time.perf_counter()
                tracer.dump(path)
                seconds.append(time.perf_counter() - start)
                size = os.path.getsize(path)
                path.unlink()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "resident_bytes": held,
        "said_bytes": device["ring_bytes"] + device["live_table_bytes"] + stacks["bytes"],
        "first_dump_s": seconds[0],
        "dump_s": statistics.median(seconds),
        "dump_extra_bytes": peak - peak_before,
        "file_bytes": size,
    }


def main() -> None:
    options = arguments(__doc__, "dump_{device}.json")
    results: dict[int, list[dict[str, float]]] = {}
    rounds = [size for _ in range(options.rounds) for size in SIZES]
    for size in track(rounds, "measuring", console=Console(stderr=True)):
        results.setdefault(size, []).append(in_own_process(__file__, size))
    table = Table(title="A full ring and its dump (medians)")
    columns = ("resident MB", "stats() says MB", "first dump s", "dump s", "extra MB", "file MB")
    for column in ("events", *columns):
        table.add_column(column, justify="right")
    figures = []
    for size in SIZES:
        found = {key: summary([each[key] for each in results[size]]) for key in results[size][0]}
        figures.append({"events": size, **found})
        row = [
            f"{each['median'] / 1e6:.1f}" if key.endswith("_bytes") else f"{each['median']:.3f}"
            for key, each in found.items()
        ]
        table.add_row(f"{size:,}", *row)
    Console().print(table)
    save(options.json, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(worker(int(sys.argv[2]))))
    else:
        main()
