"""Measure the seconds of a replay of a million events, under the recorded and other settings.

A separate process makes the recording: it allocates and frees blocks as a training does, beginning
with an empty allocator. `pytracer.experiments.replay` then runs as the command does. The figures
are the total seconds (`whole_s`), the seconds of reading the recording in the parent (`read_s`),
and, for each setting, those of the requests themselves (`asked_*_s`) and of the process that makes
them (`process_*_s`: its start, torch's import, the device's initialisation, the trace and its
reading).

On simulated devices: `tests/devices/simulate cuda PYTHON bench/replay.py --device cuda`. The
simulated driver takes no time; on a real device the driver's calls are added.
"""

import json
import random
import sys
import tempfile
import time
from typing import Any

from harness import arguments, in_own_process, save, summary
from rich.console import Console
from rich.progress import track
from rich.table import Table

EVENTS = 1_000_000
LIVE = 10_000
SETTINGS = ("expandable_segments:True",)


def record(device: str, path: str) -> dict[str, Any]:
    """Write the recording to `path` and return the number of its events."""
    import torch

    import pytracer

    if device == "npu":
        import torch_npu  # noqa: F401
    getattr(torch, device).init()
    rng = random.Random(0)
    blocks: list[Any] = []
    with pytracer.Tracer(
        device=device, context=None, trace_alloc_max_entries=2 * EVENTS, on_oom=False
    ) as tracer:
        events = 0
        while events < EVENTS:
            size = rng.randrange(1, 200_000) if rng.random() < 0.9 else rng.randrange(1, 8 << 20)
            blocks.append(torch.empty(size, dtype=torch.uint8, device=device))
            events += 1
            if len(blocks) > LIVE:
                place = rng.randrange(LIVE)
                blocks[place], blocks[-1] = blocks[-1], blocks[place]
                blocks.pop()
                events += 2
        tracer.dump(path)
    return {"events": tracer.stats()["devices"][0]["recorded"]}


def measure(path: str) -> dict[str, Any]:
    """Replay the recording and return the seconds of each part."""
    from pytracer.analysis.requests import extract_recording
    from pytracer.experiments.replay import replay
    from pytracer.reading import load

    began = time.perf_counter()
    requests = extract_recording(load(path)).requests
    read_s = time.perf_counter() - began
    began = time.perf_counter()
    done = replay(path, SETTINGS, real=True)
    whole_s = time.perf_counter() - began
    assert done.deviation is not None
    assert done.deviation.equal == done.deviation.requests
    asked_s = [replayed.asked_s for replayed in done.replayed]
    return {
        "requests": len(requests),
        "read_s": read_s,
        "whole_s": whole_s,
        "asked_own_s": asked_s[0],
        "asked_other_s": asked_s[1],
        "process_own_s": done.replayed[0].setting.outcomes[0].wall_s,
        "process_other_s": done.replayed[1].setting.outcomes[0].wall_s,
    }


def main() -> None:
    options = arguments(__doc__, "replay_{device}.json", devices=("cuda", "npu"))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/recorded.pickle"
        events = in_own_process(__file__, "record", options.device, path)["events"]
        console = Console(stderr=True)
        rounds = [
            in_own_process(__file__, "measure", path)
            for _ in track(range(options.rounds), "measuring", console=console)
        ]
    figures = {
        "events": events,
        "requests": rounds[0].pop("requests"),
        **{name: summary([round_[name] for round_ in rounds]) for name in rounds[0]},
    }
    table = Table(title=f"seconds for {events:,} events ({figures['requests']:,} requests)")
    for column in ("", "median", "min", "max"):
        table.add_column(column, justify="right")
    for name in rounds[0]:
        found = figures[name]
        table.add_row(name, *(f"{found[key]:.2f}" for key in ("median", "min", "max")))
    Console().print(table)
    save(options, figures)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps({"record": record, "measure": measure}[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
