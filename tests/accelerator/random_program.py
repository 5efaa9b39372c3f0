"""Record random allocator activity, for test_simulated_recordings.py.

    python random_program.py DEVICE SNAPSHOT SEED EVENTS [OPTIONS]

The activity has no limits that change at run time, because a trace cannot express them. It ends
when the device has no memory left.
"""

import argparse
import json
import pickle
import random
import warnings
from typing import Any

import torch

from pytracer import Tracer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("device")
    parser.add_argument("snapshot")
    parser.add_argument("seed", type=int)
    parser.add_argument("events", type=int)
    parser.add_argument("--pools", action="store_true", help="use MemPools and graph captures too")
    parser.add_argument("--delays", action="store_true", help="delay frees by other streams too")
    parser.add_argument("--late", type=int, default=0, help="events before the recording begins")
    parser.add_argument("--entries", type=int, default=1 << 20)
    parser.add_argument("--native", action="store_true", help="use torch's own recorder")
    options = parser.parse_args()
    if options.device == "npu":
        import torch_npu  # noqa: F401
    from accelerator.workload import Workload

    class Recordable(Workload):
        def _retry(self, rng: random.Random, device: int) -> int:
            return 0

        def _fail(self, rng: random.Random, device: int) -> int:
            return 0

        def expand(self, on: bool) -> int:  # the environment has the setting
            self._expands = options.pools
            return 0

    module = getattr(torch, options.device)
    module.init()
    if not options.pools:
        Recordable._pool = Recordable._capture = lambda self, rng, device: 0
    tracer = Tracer(
        device=options.device,
        stack_depth=1,
        trace_alloc_max_entries=options.entries,
        max_oom_snapshots=0,
    )

    def start() -> None:
        if options.native:
            module.memory._record_memory_history(context=None, max_entries=options.entries)
        else:
            tracer.start()

    result: dict[str, Any] = {"oom": False}
    if not options.late:
        start()
    workload = Recordable(options.device, options.seed, delays=options.delays)
    if options.late:
        workload.run(options.late)
        start()
    try:
        workload.run(options.events)
    except torch.OutOfMemoryError:
        result["oom"] = True
    if options.native:
        with open(options.snapshot, "wb") as file:
            pickle.dump(module.memory._snapshot(), file)
    else:
        tracer.dump(options.snapshot)
    stats = module.memory_stats(0)
    result["peak_reserved_bytes"] = stats["reserved_bytes.all.peak"]
    result["peak_allocated_bytes"] = stats["allocated_bytes.all.peak"]
    print(json.dumps(result))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
