"""Measure the seconds and the memory of a recommendation for a million events.

A separate process makes the recording: it allocates and frees blocks as a training does, beginning
with an empty allocator. Another process recommends settings for it, as the command does: once with
the memory that it had (`spare_s`), where the settings with the lowest peak are searched, and once
with 99 % of what its own settings need (`tight_s`), where the smallest device of each setting is
searched too. `one_s` is one simulation, `explain_s` is the answer of `pytracer show` for the same
events with an out-of-memory at their end, and `memory_mb` is the process's peak.

On simulated devices: `tests/devices/simulate cuda PYTHON bench/recommend.py --device cuda`.
"""

import pickle
import random
import resource
import tempfile
import time
from typing import Any

from harness import arguments, in_own_process, in_turn, new_table, save, start, summary

EVENTS = 1_000_000
LIVE = 10_000


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
        device=device, stack_depth=1, trace_alloc_max_entries=2 * EVENTS, max_oom_snapshots=0
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


def with_oom(path: str) -> dict[str, Any]:
    """Write a copy of the recording that ends by an out-of-memory."""
    with open(path, "rb") as file:
        content = pickle.load(file)
    trace = max(content["device_traces"], key=len)
    oom = {"action": "oom", "device_free": 0, "size": 700 << 20, "stream": 0, "frames": []}
    trace.append({**oom, "time_us": trace[-1]["time_us"]})
    with open(f"{path}.oom.pickle", "wb") as file:
        pickle.dump(content, file, protocol=4)
    return {}


def measure(path: str) -> dict[str, Any]:
    """Recommend settings for the recording, and return the seconds of each part."""
    from pytracer.analysis import explain
    from pytracer.analysis.requests import extract_recording
    from pytracer.reading import load
    from pytracer.recommendation import recommend
    from pytracer.simulator.simulate import limits_of, own_rules, simulate_recording
    from pytracer.simulator.trials import try_settings

    began = time.perf_counter()
    found = recommend(path)
    spare_s = time.perf_counter() - began
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert found.own.smallest_device_bytes is not None
    began = time.perf_counter()
    recommend(path, capacity_bytes=found.own.smallest_device_bytes * 99 // 100)
    tight_s = time.perf_counter() - began
    recording = extract_recording(load(path))
    began = time.perf_counter()
    simulate_recording(recording, own_rules(recording), limits_of(recording))
    one_s = time.perf_counter() - began
    began = time.perf_counter()
    explain(load(f"{path}.oom.pickle"), try_settings=try_settings)
    explain_s = time.perf_counter() - began
    return {
        "requests": found.requests,
        "settings": len(found.tried),
        "memory_mb": memory_mb,
        "one_s": one_s,
        "spare_s": spare_s,
        "tight_s": tight_s,
        "explain_s": explain_s,
    }


def main() -> None:
    options = arguments(__doc__, "recommend_{device}.json", devices=("cuda", "npu"))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/recorded.pickle"
        events = in_own_process(__file__, "record", options.device, path)["events"]
        in_own_process(__file__, "with_oom", path)
        tasks = ["measure"] * options.rounds
        rounds = in_turn(tasks, lambda task: in_own_process(__file__, task, path))["measure"]
    figures = {
        "events": events,
        "requests": rounds[0].pop("requests"),
        "settings": rounds[0].pop("settings"),
        **{name: summary([round_[name] for round_ in rounds]) for name in rounds[0]},
    }
    title = f"{events:,} events, {figures['settings']} settings"
    table = new_table(title, ("", "median", "min", "max"))
    for name in rounds[0]:
        found = figures[name]
        table.add_row(name, *(f"{found[key]:.2f}" for key in ("median", "min", "max")))
    save(options, figures, table)


if __name__ == "__main__":
    workers = {"record": record, "with_oom": with_oom, "measure": measure}
    start(main, lambda name, *arguments: workers[name](*arguments))
