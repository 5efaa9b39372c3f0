"""Run the activity of one seed in three processes, each with other recorders.

    parity_process.py BACKEND OPTIONS FOLDER

OPTIONS (JSON): seed, expandable, context, depth, events, parts. Each process writes a pickle with
PyTorch's and pytracer's snapshots to FOLDER: `native` (PyTorch's recorder alone), `pytracer`
(pytracer alone) and `both` (where pytracer also takes a snapshot after each part).

The processes are forked from one that has not used the device, so the addresses of their streams
are equal too. PyTorch frees blocks in the order of these addresses.
"""

import gc
import importlib
import json
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import simulated
import torch
from accelerator.workload import Workload

MAX_ENTRIES = 1 << 20
RECORDERS = ("native", "pytracer", "both")


def record(recorders: str, backend: str, options: dict[str, Any], output: Path) -> None:
    memory = getattr(torch, backend).memory
    workload = Workload(
        backend,
        options["seed"],
        expandable=options["expandable"],
        # Delays on a real device differ from run to run.
        delays=simulated.active(),
    )
    tracer = None
    if recorders != "pytracer":
        memory._record_memory_history(
            "all", context=options["context"], stacks="python", max_entries=MAX_ENTRIES
        )
    if recorders != "native":
        from contexts import with_context

        import pytracer

        tracer = pytracer.Tracer(
            device=backend, stack_depth=options["depth"], trace_alloc_max_entries=MAX_ENTRIES
        )
        with_context(tracer, options["context"]).start()
    for _ in range(options["parts"]):
        workload.run(options["events"] // options["parts"])
        if tracer is not None and recorders == "both":
            tracer.snapshot()
    if simulated.active():
        workload.leave_pending()
    native = memory._snapshot()
    traced = tracer.snapshot() if tracer is not None else None
    output.write_bytes(pickle.dumps((native, traced)))
    if tracer is not None:
        tracer.stop()
    workload.close()


def main(backend: str, options: str, folder: str) -> int:
    gc.disable()
    if backend == "npu":
        importlib.import_module("torch_npu")
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=record, args=(name, backend, json.loads(options), Path(folder) / name))
        for name in RECORDERS
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
