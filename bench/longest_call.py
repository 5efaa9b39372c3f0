"""Measure the longest single pair, an allocation and its free, while another thread holds the GIL.

A C++ thread allocates and frees through torch's caching allocator while another thread is in C code
and holds the GIL. Each pair is timed by its thread's CPU time and by wall time, which includes the
other work of the machine. The configurations run in turn: without the hook; with the hook attached
but off; recording into a ring that never fills; recording into a ring that laps all the time; and
the same with concurrent snapshots (during which the GIL is held only part of the time). The goal is
a longest CPU time of a recorded pair of less than 1 ms.

On simulated devices: `tests/devices/simulate cuda PYTHON bench/longest_call.py --device cuda`.
"""

import ctypes
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from harness import arguments, in_own_process, in_turn, new_table, save, start, summary

SECONDS, SAMPLES = 1.0, 1_000_000
CONFIGURATIONS = ("no hook", "off", "recording", "ring lapping", "snapshots")
FIGURES = ("p50", "p99.9", "max")


def worker(backend: str, configuration: str) -> dict[str, Any]:
    """Return percentiles of the nanoseconds of a pair, by CPU time and by wall time."""
    import numpy as np
    import torch

    import pytracer

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from accelerator.extension import Churn, Extension

    getattr(torch, backend).init()
    entries = 8_000_000 if configuration == "recording" else 10_000
    tracer = pytracer.Tracer(device=backend, trace_alloc_max_entries=entries)
    with tempfile.TemporaryDirectory() as folder:
        extension = Extension(Path(folder))
    churn = Churn(extension, f"{backend}:0", held=64)
    churn.allow(10_000)  # warm-up, so that segments and everything else of the first calls exist
    churn.finish()
    churn.end()
    churn = Churn(extension, f"{backend}:0", held=64, samples=SAMPLES)
    if configuration != "no hook":
        tracer.start()
    if configuration == "off":
        tracer.stop()
    churn.allow(1 << 60)
    if configuration == "snapshots":
        end = time.monotonic() + SECONDS

        def hold() -> None:
            while time.monotonic() < end:
                churn.hold_gil(0.02, ctypes.c_uint64())

        thread = threading.Thread(target=hold)
        thread.start()
        while time.monotonic() < end:
            tracer.snapshot()
        thread.join()
    else:
        churn.hold_gil(SECONDS, ctypes.c_uint64())
    samples = churn.end()
    result: dict[str, Any] = {"pairs": len(samples)}
    for column, clock in enumerate(("cpu", "wall")):
        values = np.percentile(samples[:, column], [50, 99.9, 100])
        result |= {
            f"{clock} {name}": float(value) for name, value in zip(FIGURES, values, strict=True)
        }
    return result


def main() -> None:
    options = arguments(__doc__, "longest_call_{device}.json", devices=("cuda", "npu"))
    rounds = [*CONFIGURATIONS] * options.rounds
    results = in_turn(rounds, lambda name: in_own_process(__file__, options.device, name))
    clocks = [f"{clock} {name}" for clock in ("cpu", "wall") for name in FIGURES]
    title = "µs of an allocation and its free (medians; for max, the maximum)"
    table = new_table(title, ("", *clocks))
    figures = []
    for configuration, runs in results.items():
        by_key = {key: summary([run[key] for run in runs]) for key in runs[0]}
        figures.append({"configuration": configuration, "ns": by_key})
        shown = ["max" if key.endswith("max") else "median" for key in clocks]
        cells = [f"{by_key[k][which] / 1000:.1f}" for k, which in zip(clocks, shown, strict=True)]
        table.add_row(configuration, *cells)
    save(options, figures, table)


if __name__ == "__main__":
    start(main, worker)
