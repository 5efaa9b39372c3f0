"""Measure what rollout importance sampling adds to peak memory, in examples/rlhf_phases.py.

Each shape and mode (off, metrics, applied) runs in a separate process for two steps, with the same
seed, so that the modes' tensors have the same sizes. Figures are bytes. From the recording come the
peak of the requested bytes, the phase of the peak, the part of the peak that the phase `rollout_is`
had allocated, and the most that this phase held at any time. From the allocator, on accelerators,
come its own peaks, which include rounding. The large shapes run only on simulated devices, which
compute nothing.

    python bench/rollout_is.py
    SIMULATED_CAPACITY_MB=81920 tests/devices/simulate cuda PYTHON bench/rollout_is.py --device cuda
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from harness import RESULTS, environment, in_own_process, in_turn, new_table, start
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from rlhf_phases import Shape, Trainer

MODES, STEPS, IS = ("off", "metrics", "applied"), 2, "rollout_is"
SHAPES = {
    "the example's": Shape(),
    "long responses": Shape(batch=16, response=256),
    "large vocabulary": Shape(batch=16, vocabulary=50_000),
    "many rows": Shape(batch=256, mini_batches=64, width=64, layers=1),
    "a toy": Shape(1024, 128, 8, 24, vocabulary=32, width=16, heads=2, layers=1),
}
LARGE_SHAPES = {
    "large": Shape(64, 16, 128, 512, vocabulary=151_936, width=896, heads=14, layers=4),
    "large, many rows": Shape(512, 256, 128, 512, 151_936, width=896, heads=14, layers=4),
    "wide and deep": Shape(64, 16, 128, 512, vocabulary=32_000, width=2048, heads=16, layers=16),
}


def worker(device: str, name: str, mode: str) -> dict[str, Any]:
    import torch

    import pytracer
    from pytracer.analysis.history import replay
    from pytracer.reading import load

    shape = {**SHAPES, **LARGE_SHAPES}[name]
    with tempfile.NamedTemporaryFile() as file:
        with pytracer.Tracer(
            device=device, stack_depth=1, trace_alloc_max_entries=5_000_000
        ) as tracer:
            trainer = Trainer(shape, device, mode, seed=0)
            for _ in range(STEPS):
                trainer.step()
            tracer.dump(file.name)
        snapshot = load(file.name)
    assert snapshot.metadata.device(0).overwritten == 0
    history, trace = replay(snapshot), snapshot.traces[0]
    level = history.usage.requested_bytes
    fullest = int(level.argmax())
    blocks = history.blocks
    # The bytes that the phase holds before the first event and after each event.
    held = np.zeros(len(trace) + 2, np.int64)
    of_phase = np.array([snapshot.strings[phase] == IS for phase in blocks.user_metadata], bool)
    np.add.at(held, blocks.alloc_event[of_phase] + 1, blocks.requested_bytes[of_phase])
    np.add.at(held, blocks.free_event[of_phase] + 1, -blocks.requested_bytes[of_phase])
    held = np.cumsum(held)
    module = None if device == "cpu" else getattr(torch, device)
    return {
        "peak_bytes": int(level[fullest]),
        "peak_phase": snapshot.strings[trace.user_metadata[fullest - 1]],
        "is_at_peak_bytes": int(held[fullest]),
        "is_most_bytes": int(held.max()),
        "allocated_peak_bytes": module and module.max_memory_allocated(),
        "reserved_peak_bytes": module and module.max_memory_reserved(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "npu"), default="cpu")
    parser.add_argument("--json", type=Path, default=RESULTS / "rollout_is.json")
    options = parser.parse_args()
    where = environment()
    shapes = {**SHAPES, **(LARGE_SHAPES if where["simulated"] else {})}
    runs = [(name, mode) for name in shapes for mode in MODES]
    results = in_turn(runs, lambda run: in_own_process(__file__, options.device, *run))
    columns = ("shape", "peak", "in phase", "metrics adds", "applied adds", "per cent")
    title = "The peak, and what rollout importance sampling adds to it"
    table = new_table(title, columns, ("shape", "in phase"))
    figures = []
    for name, shape in shapes.items():
        found = {mode: results[name, mode][0] for mode in MODES}
        figures.append({"what": name, "shape": asdict(shape), "modes": found})
        peak = found["off"]["peak_bytes"]
        added = [found[mode]["peak_bytes"] - peak for mode in MODES[1:]]
        table.add_row(
            name,
            f"{peak:,}",
            found["off"]["peak_phase"],
            *(f"{bytes_:,}" for bytes_ in added),
            f"{100 * added[-1] / peak:.4f}",
        )
    Console().print(table)
    # One file has the results of all devices; this run replaces those of its device.
    content = json.loads(options.json.read_text()) if options.json.exists() else {}
    content[options.device] = {"environment": where, "figures": figures}
    options.json.write_text(json.dumps(content, indent=2) + "\n")
    print(f"\n{options.json}")


if __name__ == "__main__":
    start(main, worker)
